"""The comparisons on a GPU run with a tiny model on a CPU, and notice wrong rows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeswitch.loadtests.bench import gpu_engine, gpu_million, sides


@pytest.mark.skipif(torch.cuda.is_available(), reason="asserts the refusal on a machine without a GPU")
@pytest.mark.parametrize("program", [gpu_engine, gpu_million])
def test_a_machine_without_a_gpu_is_refused(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--json", str(tmp_path / "figures.json")]) == 2
    assert "needs a CUDA GPU, but torch finds none" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_too_few_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_engine.main(["--small", "--rounds", "4"])
    assert "--rounds: 4 is too few" in capsys.readouterr().err


def test_stock_is_not_measured_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with pytest.raises(SystemExit, match=r"^bench: VLLM_PLUGINS: 'other' leaves out 'ropeswitch'"):
        sides.with_ladder({})


def run(name: str, file: Path, *flags: str) -> tuple[str, Any]:
    command = [sys.executable, "-m", f"ropeswitch.loadtests.bench.{name}", "--small", "--json", str(file), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout, json.loads(file.read_text())


@pytest.mark.full
def test_the_engines_take_turns(tmp_path: Path) -> None:
    output, figures = run("gpu_engine", tmp_path / "figures.json")
    rows = [line.split(" | ") for line in output.splitlines() if line.startswith("| ")][2:]
    assert [row[0].removeprefix("| ") for row in rows] == [
        "prefill", "decode", "decode, 1 request", "crossing",
        "first token, long", "first token, short, median", "first token, short, worst",
    ]  # fmt: skip
    assert len(figures["rounds"]) == 5
    # Ours alone computes the sequence that crosses twice.
    assert float(next(row for row in rows if "crossing" in row[0])[3]) < 1


@pytest.mark.full
def test_rows_are_compared_to_the_end_of_the_longest_prompt(tmp_path: Path) -> None:
    output, figures = run("gpu_million", tmp_path / "figures.json", "--layers", "2")
    assert "4,096 tokens: first token after" in output and "the slowest of 8 short ones" in output
    assert figures["prompts"][-1]["rows"]["furthest"] > 4096 - 256


@pytest.mark.full
def test_wrong_rows_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "0" if "MULTI" in name else "ERROR")
    gpu_engine.write_config(tmp_path, gpu_engine.SMALL)
    llm = gpu_engine.start(str(tmp_path), True, gpu_engine.SMALL, enforce_eager=True)
    (rows,) = (
        llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.step_rows.by_rotation.values()
    )
    fill = rows._filler

    def off_by_one(buffer: Any, positions: Any, sets: Any, starts: Any) -> None:
        fill(buffer, positions + 1, sets, starts)

    rows._filler = off_by_one
    found = gpu_million.watch(llm, every=1)
    gpu_engine.first_tokens(llm, {"long": (gpu_engine.prompt(40, gpu_engine.SMALL, 1), 0.0)}, 2)
    llm.llm_engine.engine_core.shutdown()
    assert found.checked and found.worst > gpu_million.TOLERANCE
