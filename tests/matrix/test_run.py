"""The driver keeps each result at once and goes on with what is missing; a wrong rotation is seen."""

import json
from pathlib import Path

import pytest

from tests.matrix.run import Line, fill, read


def test_an_interrupted_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, asked = tmp_path / "results" / "matrix.jsonl", []

    def measure(name: str) -> Line:
        asked.append(name)
        if name == "B" and asked.count("B") == 1:
            raise KeyboardInterrupt
        return {"architecture": name, "verdict": "exact", "seconds": 1.0}

    with pytest.raises(KeyboardInterrupt):
        fill(results, ["C", "B", "A"], measure)
    assert list(read(results)) == ["C"]
    fill(results, [name for name in ("A", "B", "C") if name not in read(results)], measure)
    assert asked.count("C") == 1
    assert [json.loads(line)["architecture"] for line in results.read_text().splitlines()] == ["A", "B", "C"]
    assert "docs-models: 2 of 2: B: exact (1 s)" in capsys.readouterr().out


def test_one_that_takes_too_long_has_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(name: str) -> Line:
        if name == "A":
            raise TimeoutError("A: not finished after 300 s; raise --limit")
        return {"architecture": name, "verdict": "exact", "seconds": 1.0}

    fill(tmp_path / "matrix.jsonl", ["A", "B"], measure)
    assert list(read(tmp_path / "matrix.jsonl")) == ["B"]
    assert "A: not finished after 300 s" in capsys.readouterr().out
