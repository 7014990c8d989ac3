"""Runs of ``ropeswitch loadtest`` in the tests' own process."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeswitch.server import cli
from tests.loadtests.client.scripted import Scripted, serving

SMALL: dict[str, Any] = {
    "name": "small",
    "arrival": {"closed": {"concurrency": 2}},
    "requests": 6,
    "warmup": 0,
    "text": "village",
    "mix": [{"kind": "chat", "prompt": {"uniform": {"min": 60, "max": 200}}, "output": 44}],
}


def workload(folder: Path, **changes: Any) -> str:
    """A small workload's file, with other values for its keys."""
    path = folder / "workload.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return str(path)


def loadtest(folder: Path, file: str, url: str, *flags: str, report: bool = False) -> int:
    """Run the command; its results go to ``folder / "out"``."""
    where = ["--out", str(folder / "out")]
    return cli.main(["loadtest", file, "--url", url, *where, *flags, *([] if report else ["--no-report"])])


def ran(folder: Path, server: Scripted, *flags: str, code: int = 0, **changes: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The results and the requests of a small workload, with other values for its keys, on a scripted server."""
    with serving(server):
        assert loadtest(folder, workload(folder, **changes), server.url, *flags) == code
    return results(folder), requests(folder)


def results(folder: Path) -> Any:
    """``results.json``."""
    return json.loads((folder / "out" / "results.json").read_text())


def requests(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``requests.jsonl``."""
    return [json.loads(line) for line in (folder / "out" / "requests.jsonl").read_text().splitlines()]


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    output = capsys.readouterr().err
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("ropeswitch: error: ")]
    return line.removeprefix("ropeswitch: error: ")
