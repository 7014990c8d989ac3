"""Runs test cases in a process that no other test has run in."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def check_cases(file: Path, at_least: int) -> None:
    """Assert that all cases of a file pass.

    Args:
        file: Whose name does not begin with ``test_``, so that it is not collected here.
        at_least: The cases that it has.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found and int(found[1]) >= at_least, done.stdout[-2000:]
