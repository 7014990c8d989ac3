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
    try:
        baseline.wait()
        with running(tmp_path, TINY, *ENGINE) as target:
            for name in ("crossing", "chat"):
                folder = tmp_path / name
                folder.mkdir()
                code = loadtest(
                    folder, name, target.url, "--baseline", f"http://127.0.0.1:{baseline.port}", "--text", "village",
                    "--longest", "1024", "--scale", "0.1" if name == "crossing" else "0.5", "--rate", "1", "--seconds", "20",
                    "--assert", "correct>=0.95", "--assert", "miscounted==0", "--assert", "failed==0", report=True,
                )  # fmt: skip
                assert code == 0
                found = results(folder)["points"][0]
                assert found["target"]["checked"] > 10
                if name == "chat":
                    # Stock rotates short prompts with the factors of the longest sequence.
                    assert found["baseline"]["correct"] < 0.8 * found["target"]["correct"]
                folder = tmp_path / f"{name}-stock"
                folder.mkdir()
                alone = ["--text", "village", "--longest", "1024", "--rate", "1", "--seconds", "10"]
                alone += ["--scale", "0.5"] if name == "chat" else ["--bands", "0-256,256-"]
                url = f"http://127.0.0.1:{baseline.port}"
                if name == "chat":
                    assert (
                        loadtest(folder, name, url, *alone, "--assert", "miscounted==0", "--assert", "failed==0") == 0
                    )
                else:
                    # Stock vLLM does not tell where its sets switch.
                    assert loadtest(folder, name, url, *alone) == 2
                folder = tmp_path / name
                page = (folder / "out" / "report.html").read_text()
                assert "Time to first token" in page and "Wrong answers" in page
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
