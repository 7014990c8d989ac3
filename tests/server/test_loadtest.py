"""``ropeswitch loadtest`` against servers of the real engine: ours, and stock vLLM beside it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeswitch.loadtests.client import workload as workloads
from ropeswitch.loadtests.proof.server import Server as Baseline
from tests.loadtests.client.commands import loadtest, requests, results
from tests.passkey_tiny import FOLDER
from tests.server.running import ENGINE, Server, running

TINY = str(FOLDER)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("target"), TINY, *ENGINE) as server:
        yield server


@pytest.mark.full
def test_the_switched_server_answers_right_where_stock_vllm_does_not(target: Server, tmp_path: Path) -> None:
    """The same prompts for both, in turns: ones whose answers outgrow the first set, and chats."""
    (tmp_path / "stock").mkdir()
    stock = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", TINY]
    flags = ["--served-model-name", "passkey-tiny", *ENGINE, "--max-model-len", "1024"]
    baseline = Baseline([*stock, *flags], tmp_path / "stock")
    asserted = ["--assert", "correct>=0.95", "--assert", "miscounted==0", "--assert", "failed==0"]
    try:
        baseline.wait()
        for name, scale in (("crossing", "0.1"), ("chat", "0.5")):
            folder = tmp_path / name
            folder.mkdir()
            given = ["--baseline", f"http://127.0.0.1:{baseline.port}", "--text", "village", "--longest", "1024"]
            given += ["--scale", scale, "--rate", "1", "--seconds", "20", *asserted]
            assert loadtest(folder, name, target.url, *given, report=True) == 0
            found = results(folder)["points"][0]
            assert found["target"]["checked"] > 10
        # Stock rotates short prompts with the factors of the longest sequence.
        assert found["baseline"]["correct"] < 0.8 * found["target"]["correct"]
    finally:
        baseline.stop()


@pytest.mark.full
def test_every_shipped_workload_has_exact_lengths_on_a_real_server(target: Server, tmp_path: Path) -> None:
    scaled = {
        "bursts": "0.1", "chat": "0.5", "crossing": "1", "documents": "0.002", "heavy": "0.0004", "million": "0.0009",
        "mixed": "0.0008", "sessions": "0.1", "soak": "0.1",
    }  # fmt: skip
    assert workloads.shipped("workload").keys() == scaled.keys()
    for name, scale in scaled.items():
        folder = tmp_path / name
        folder.mkdir()
        timed = ["--requests", "8"] if name in ("sessions", "million") else ["--rate", "2", "--seconds", "6"]
        flags = ["--text", "village", "--scale", scale, "--longest", "1000", *timed]
        flags += ["--assert", "failed==0", "--assert", "miscounted==0", "--assert", "completed>4"]
        assert loadtest(folder, name, target.url, *flags) == 0, name
        for line in requests(folder):
            assert line["factor_set"] == ("short" if line["prompt_tokens"] <= 256 else "long"), name
    assert results(tmp_path / "crossing")["crossings"] > 0
