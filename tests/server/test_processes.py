"""Two API servers over two engines: headers, metrics, status and access logs are those of the whole server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.asking import wait_until
from tests.server.conftest import MODEL
from tests.server.metrics.ladders import total, values
from tests.server.observed import Log
from tests.server.running import ENGINE, Server, running

pytestmark = pytest.mark.full
SECONDS = 30.0
PROMPTS = {"model": MODEL, "prompt": ["a" * 20, "b" * 300], "max_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--served-model-name", MODEL, "--api-server-count", "2", "--data-parallel-size", "2"]
    folder, nodes = tmp_path_factory.mktemp("processes"), {"VLLM_CPU_OMP_THREADS_BIND": "auto"}
    # vLLM 0.33 wants a NUMA node for each replica on CPUs.
    with running(
        folder, str(checkpoint), *ENGINE, *flags, variables=nodes | {"VLLM_CPU_SIM_MULTI_NUMA": "1"}
    ) as started:
        yield started


def test_every_process_answers_and_shows_the_metrics_of_all(server: Server) -> None:
    """Runs first: the counts are those of the whole server, whichever process answers."""
    for _ in range(8):
        answer = server.post("/v1/completions", PROMPTS)
        assert (answer.status, answer.sets) == (200, "short, long"), answer.text
        assert server.post("/v1/completions", PROMPTS | {"vllm_xargs": {"rope_factor_set": "nope"}}).status == 400
    for _ in range(6):
        found = values(server.get("/metrics").text)
        outcomes = [total(found, "ropeswitch_requests_total", outcome=name) for name in ("length", "rejected")]
        assert outcomes == [16, 8]
        for length, name in ((20, "short"), (300, "long")):
            assert total(found, "ropeswitch_prompt_tokens_total", factor_set=name) == 8 * length
        assert all(total(found, "ropeswitch_prompt_tokens_total", engine=engine) for engine in "01")
        figures = server.get("/v1/status").json["figures"]
        assert (figures["outcomes"]["length"], figures["outcomes"]["rejected"]) == (16, 8)
        assert not any(each["waiting"] or each["generating"] for each in figures["live"])


def test_each_process_logs_its_requests_whole(server: Server) -> None:
    log = Log(server)
    for number in range(8):
        body = {"model": MODEL, "prompt": "a", "max_tokens": 2}
        assert server.post("/v1/completions", body, **{"x-request-id": f"marzipan-{number}"}).status == 200
    # A line is written when its answer is sent.
    wait_until(lambda: len(log.lines()) == 8, "lines of the log", SECONDS)
    ids = sorted(line["request_id"] for line in log.lines())
    assert ids == [f"cmpl-marzipan-{number}" for number in range(8)]
