"""``ropeswitch factors check``: what it prints and writes, and refusals in one line."""

import json
from pathlib import Path

import pytest

from ropeswitch.server.cli import main
from tests.passkey_tiny import FOLDER

MODEL = FOLDER
SIZE = ["--rotary-dim", "128", "--rope-theta", "10000", "--original-length", "4k"]
WINDOW = ["--original-length", "4k"]


@pytest.fixture(autouse=True)
def folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["factors", "rule", "ntk", *SIZE, "--lengths", "8k,32k", "-o", "ntk.json"]) == 0
    capsys.readouterr()
    return folder


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["factors", "check", "ntk.json", *WINDOW]) == 0
    printed = capsys.readouterr().out
    assert "critical dimension 92 of 128" in printed
    # NTK-aware at 8 times: the base times 8^(128/126).
    [line] = [line for line in printed.splitlines() if line.startswith("32k") and "82684.6" in line]
    assert line.split()[-1] == "82684.6"
    assert "warning: set 32k: angles unseen in training at pairs 46 to 62, within 32768 tokens" in printed


def test_json(folder: Path) -> None:
    command = ["factors", "check", "ntk.json", *WINDOW, "--set", "8k", "--length", "16k", "--json", "found.json"]
    assert main(command) == 0
    found = json.loads((folder / "found.json").read_text())
    assert found["rope"] == {
        "rotary_dim": 128,
        "theta": 10000.0,
        "original_length": 4096,
        "critical_dimension": 92,
        "critical_pair": pytest.approx(45.027, abs=1e-3),
    }
    [only] = found["sets"]
    assert (only["name"], only["length"], only["shape"]["highest"]) == ("8k", 16384, pytest.approx(2))
    assert len(only["shape"]["pairs"]) == 64
    assert main(command) == 2 and main([*command, "--force"]) == 0


@pytest.mark.parametrize("path", [MODEL, MODEL / "config.json"])
def test_a_models_own_factors(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["factors", "check", str(path), "--set", "long"]) == 0
    printed = capsys.readouterr().out
    assert "base 10000, original window 256 tokens" in printed and "short" not in printed
    assert len([line for line in printed.splitlines() if line.startswith("long  ")]) == 1
