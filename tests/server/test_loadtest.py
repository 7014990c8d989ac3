"""``ropeswitch loadtest`` against servers of the real engine: ours, and stock vLLM beside it."""

import sys
from pathlib import Path

import pytest

from ropeswitch.loadtests.client import workload as workloads
from ropeswitch.loadtests.proof.server import Server as Baseline
from tests.loadtests.client.commands import loadtest, requests, results, workload
from tests.passkey_tiny import FOLDER
from tests.server.running import ENGINE, Server, running

TINY = str(FOLDER)


@pytest.mark.full
def test_token_counts_are_exact_for_the_real_server(server: Server, tmp_path: Path) -> None:
    limit = server.get("/v1/rope").json["sets"][0]["max_length"]
    parts = {
        "chat": [
            {"kind": "talk", "prompt": 130, "output": 8, "turns": {"count": 3, "grow": 80}},
            {"kind": "whole", "prompt": {"uniform": {"min": 130, "max": 200}}, "output": 8, "stream": False},
        ],
        "completions": [
            {"kind": "text", "prompt": {"crossing": {"within": 4}}, "output": 12},
            {"kind": "ids", "form": "ids", "prompt": {"uniform": {"min": 130, "max": 200}}, "output": 12},
        ],
    }
    for endpoint, mix in parts.items():
        folder = tmp_path / endpoint
        folder.mkdir()
        file = workload(folder, endpoint=endpoint, mix=mix, requests=8, ignore_eos=True)
        flags = ["--assert", "miscounted==0", "--assert", "failed==0", "--assert", "completed>7"]
        assert loadtest(folder, file, server.url, *flags) == 0
        lines = requests(folder)
        assert {line["output_tokens"] for line in lines} == {line["max_tokens"] for line in lines}
        for line in lines:
            expected = "long" if line["prompt_tokens"] > limit else "short"
            assert line["factor_set"] == expected
    assert results(tmp_path / "completions")["crossings"] > 0


@pytest.mark.full
def test_the_switched_server_answers_right_where_stock_vllm_does_not(tmp_path: Path) -> None:
    """The same prompts for both, in turns: short ones, long ones, and ones whose answers outgrow the first set."""
    (tmp_path / "stock").mkdir()
    stock = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", TINY]
    flags = ["--served-model-name", "passkey-tiny", *ENGINE, "--max-model-len", "1024"]
    baseline = Baseline([*stock, *flags], tmp_path / "stock")
    asserted = ["--assert", "correct>=0.95", "--assert", "miscounted==0", "--assert", "failed==0"]
    try:
        baseline.wait()
        with running(tmp_path, TINY, *ENGINE) as target:
            for name, scale in (("crossing", "0.1"), ("chat", "0.5")):
                folder = tmp_path / name
                folder.mkdir()
                given = ["--baseline", f"http://127.0.0.1:{baseline.port}", "--text", "village", "--longest", "1024"]
                given += ["--scale", scale, "--rate", "1", "--seconds", "20", *asserted]
                assert loadtest(folder, name, target.url, *given, report=True) == 0
                found = results(folder)["points"][0]
                assert found["target"]["checked"] > 10
                page = (folder / "out" / "report.html").read_text()
                assert "Time to first token" in page and "Wrong answers" in page
            # Stock rotates short prompts with the factors of the longest sequence.
            assert found["baseline"]["correct"] < 0.8 * found["target"]["correct"]
    finally:
        baseline.stop()


@pytest.mark.full
def test_every_shipped_workload_runs_against_the_bundled_model(tmp_path: Path) -> None:
    scaled = {
        "bursts": "0.1", "chat": "0.5", "crossing": "1", "documents": "0.002", "heavy": "0.0004", "million": "0.0009",
        "mixed": "0.0008", "sessions": "0.1", "soak": "0.1",
    }  # fmt: skip
    assert workloads.shipped("workload").keys() == scaled.keys()
    with running(tmp_path, TINY, *ENGINE) as server:
        for name, scale in scaled.items():
            folder = tmp_path / name
            folder.mkdir()
            timed = ["--requests", "8"] if name in ("sessions", "million") else ["--rate", "2", "--seconds", "6"]
            flags = ["--text", "village", "--scale", scale, "--longest", "1000", *timed]
            flags += ["--assert", "failed==0", "--assert", "miscounted==0", "--assert", "completed>4"]
            assert loadtest(folder, name, server.url, *flags) == 0, name
