"""``ropeswitch loadtest`` against a server of the real engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeswitch.loadtests.client import workload as workloads
from tests.loadtests.client.commands import loadtest, requests, results
from tests.passkey_tiny import FOLDER
from tests.server.running import ENGINE, Server, running

TINY = str(FOLDER)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("target"), TINY, *ENGINE) as server:
        yield server


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
        timed = ["--requests", "8"] if name in ("sessions", "million") else ["--rate", "3", "--seconds", "4"]
        flags = ["--text", "village", "--scale", scale, "--longest", "1000", *timed]
        flags += ["--assert", "failed==0", "--assert", "miscounted==0", "--assert", "completed>4"]
        assert loadtest(folder, name, target.url, *flags) == 0, name
        for line in requests(folder):
            assert line["factor_set"] == ("short" if line["prompt_tokens"] <= 256 else "long"), name
    assert results(tmp_path / "crossing")["crossings"] > 0
