"""Measures the results of docs/proof.md, then writes its tables: ``python -m ropeswitch.loadtests.proof``.

It can be interrupted at any time; the same command resumes with the first missing document.
"""

import argparse
import sys
from pathlib import Path

from ropeswitch.factors.errors import InputError
from ropeswitch.loadtests.proof import tables
from ropeswitch.loadtests.proof.arms import ARMS, NAME
from ropeswitch.loadtests.proof.measure import LENGTHS, measure
from ropeswitch.loadtests.proof.store import CHAT, PASSKEY, PERPLEXITY
from ropeswitch.loadtests.proof.texts import corpus
from ropeswitch.models.demo.convert import convert
from ropeswitch.models.demo.source import SMOLLM2, fetch

TASKS = (PERPLEXITY, PASSKEY, CHAT)
WORK = Path(".demo")
"""Folder for the model and the texts, shared with ``make demo``."""


def main() -> int:
    """Measure what is missing, then write the pages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ropeswitch.loadtests.proof", description=__doc__)
    parser.add_argument("--page-only", action="store_true", help="write the tables without measuring")
    args = parser.parse_args()
    try:
        if not args.page_only:
            _measure()
        tables.write(Path())
    except (InputError, OSError) as error:
        print(f"docs-proof: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("docs-proof: interrupted; the same command resumes", file=sys.stderr)
        return 130
    print(f"docs-proof: wrote {', '.join(map(str, tables.PAGES))}")
    return 0


def _measure() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    convert(fetch(SMOLLM2, WORK, _say), WORK / NAME, _say)
    texts = corpus(WORK / "texts")
    for length in LENGTHS:
        for arm in ARMS:
            measure(arm, WORK / NAME, texts, TASKS, [length], tables.RESULTS)


def _say(line: str) -> None:
    print(f"docs-proof: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
