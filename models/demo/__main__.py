"""Downloads and converts the model of ``make demo``: ``python -m ropeswitch.models.demo --folder .demo``.

It can be stopped and restarted at any time: finished steps are not repeated.
"""

import argparse
import sys
from pathlib import Path

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo.convert import convert
from ropeswitch.models.demo.source import SMOLLM2, fetch

NAME = "smollm2"
"""Folder of the converted checkpoint inside ``--folder``, and its served model name."""


def main(arguments: list[str] | None = None) -> int:
    """Download and convert the model; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ropeswitch.models.demo", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="folder for the files (default: .demo)")
    folder = parser.parse_args(arguments).folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        convert(fetch(SMOLLM2, folder, _say), folder / NAME, _say)
    except (InputError, OSError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo: interrupted; run make demo again to resume", file=sys.stderr)
        return 130
    return 0


def _say(line: str) -> None:
    print(f"demo: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
