"""A real Prometheus that scrapes a real server has an answer to every query of the dashboards; its alerts stay quiet."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deploy.monitoring.files import alerts, board_queries, filled
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, Server, running
from tests.server.test_prometheus import prometheus, wait_for

# A second prompt of the long set that has to wait is refused.
FLAGS = ["--served-model-name", "tiny", "--max-queued-requests", "long=1"]


def _complete(server: Server, first: int, prompt: int, tokens: int, **more: object) -> int:
    ids = [5 + (first + i) % 200 for i in range(prompt)]
    body = {"model": "tiny", "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return server.post("/v1/completions", body | more).status


def _refused_by_the_queue(server: Server) -> bool:
    with ThreadPoolExecutor(8) as pool:
        return 503 in pool.map(lambda first: _complete(server, first, 900, 1), range(8))


@pytest.mark.full
def test_every_query_of_the_dashboard_has_an_answer_and_no_alert_fires_on_a_healthy_server(tmp_path: Path) -> None:
    """A server to which everything has happened that the dashboard shows, and the Prometheus that looks on."""
    (tmp_path / "server").mkdir()
    checkpoint = phi3_with_tokenizer(tmp_path / "model")
    with (
        running(tmp_path / "server", str(checkpoint), *ENGINE, *FLAGS) as server,
        prometheus(tmp_path, server) as ask,
    ):
        assert _complete(server, 0, 20, 3) == 200
        # The stream outgrows its set, and the second time finds its tokens in the cache.
        assert [_complete(server, 0, 250, 20) for _ in range(2)] == [200, 200]
        assert _complete(server, 0, 20, 3, temperature=-1) == 400
        assert any(_refused_by_the_queue(server) for _ in range(5))
        wait_for(ask, "sum(ropeswitch_switches_total)", 2)
        # A rate needs two scrapes.
        deadline = time.monotonic() + 60
        while missing := [asked.where for asked in board_queries() if not ask(filled(asked.query))]:
            assert time.monotonic() < deadline, missing
            time.sleep(1)
        firing = {name for name, alert in alerts().items() if ask(alert["expr"])}
        # The server has just refused prompts; it would have to go on for minutes.
        assert firing <= {"RopeswitchQueueFull"}
