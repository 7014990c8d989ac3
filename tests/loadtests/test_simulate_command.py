"""The simulator's command line: what it prints and writes, and how it refuses and stops."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeswitch.loadtests.simulation import simulate
from ropeswitch.loadtests.simulation.records import Step


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0"], "--gpus: '0' must be a whole number from 1 to 1024"),
        (["--gpus", "3"], "--gpus: 3: TP 3: must divide the 32 query heads"),
        (["--gpu", "abacus"], "--gpu: 'abacus' is unknown; allowed: A100-40GB"),
        (["--model", "gpt"], "--model: 'gpt' is unknown; allowed: mistral-7b, llama2-7b"),
        (["--gpus", "1"], "--longest: 2096640 tokens plus an answer do not fit: 1 x A100-80GB hold "),
        (["--longest", "3000000"], "--longest: '3000000' must be a whole number from 8192 to 2096640"),
        (["--load", "nan"], "--load: 'nan' must be a number from 0.01 to 10"),
        (["--noise", "2"], "--noise: '2' must be a number from 0 to 1"),
        (["--targets", "0.1,,"], "--targets: '' must be a number from 0.001 to 60"),
        (["--requests", "1e3"], "--requests: '1e3' must be a whole number from 2 to 100000"),
        (["--workload", "none"], "--workload: invalid choice: 'none'"),
        (["--gpu-file", "missing.toml"], "--gpu-file: 'missing.toml'"),
        (["--out", "file"], "'file'"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_refusals(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert simulate.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("simulate: error: ") and message in err and err.count("\n") == 1


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def interrupt(*_: object) -> Callable[[Step], None]:
        def watch(step: Step) -> None:
            raise KeyboardInterrupt

        return watch

    monkeypatch.setattr(simulate, "_progress", interrupt)
    assert simulate.main(["--quick", "--workload", "burst", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("simulate: stopped by Ctrl-C\n")


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--quick", "--workload", "burst", "--longest", "16384", "--out", str(tmp_path / "new" / "folder")]
    assert simulate.main(flags) == 0
    out, err = capsys.readouterr()
    assert out.startswith("ESTIMATES from datasheet rates, not measurements: mistral-7b on 16 x A100-80GB")
    lines = out.splitlines()
    assert [line.split(",")[0].split(":")[0].split("  ")[0] for line in lines[6:9]] == [
        "stock default",
        "stock tuned",
        "ours",
    ]
    assert "simulate: burst, stock default: 2048: " in err
    written = json.loads((tmp_path / "new" / "folder" / "figures.json").read_text())
    assert [run["policy"]["kind"] for run in written["workloads"]["burst"]] == ["default", "tuned", "tuned", "ours"]
    assert (tmp_path / "new" / "folder" / "burst.png").read_bytes().startswith(b"\x89PNG")
