"""Runs test cases in a process that no other test has run in."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def check_cases(
    *files: Path, at_least: int, flags: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> None:
    """Assert that all cases of some files pass.

    Args:
        files: A file whose name does not begin with ``test_`` is not collected in this process too.
        at_least: The cases that must pass.
        flags: More arguments of pytest.
        variables: More environment variables of the process.
    """
    # Logs would push the assertion out of the text that is shown below.
    command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", "-p", "no:cacheprovider", *flags]
    done = subprocess.run(
        [*command, *map(str, files)],
        cwd=ROOT, env=os.environ | dict(variables or {}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found and int(found[1]) >= at_least, done.stdout[-2000:]
