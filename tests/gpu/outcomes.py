"""A pytest plugin (``-p tests.gpu.outcomes``): writes each test that starts, and its outcome, to a file.

Each line reaches the file at once, so it is there whatever ends the process.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "ROPESWITCH_TEST_OUTCOMES"
RUNNING = "running"


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(nodeid, RUNNING)


def pytest_runtest_logreport(report: Any) -> None:
    # A test may fail or be skipped before it is called, and fail after it.
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome)


def _write(test: str, outcome: str) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([test, outcome]) + "\n")


def read(file: Path) -> dict[str, str]:
    """Each test's outcome: ``passed``, ``failed``, ``skipped``, or ``running`` where it did not end."""
    outcomes: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        test, outcome = json.loads(line)
        if outcomes.get(test) != "failed":
            outcomes[test] = outcome
    return outcomes


def counted(outcomes: Mapping[str, str]) -> dict[str, int]:
    """How many tests have each outcome."""
    counts = Counter(outcomes.values())
    return {name: counts[name] for name in ("passed", "failed", "skipped", RUNNING)}
