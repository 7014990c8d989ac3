"""A real Prometheus that scrapes a real server has an answer to every query of the dashboards; its alerts stay quiet."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deploy.monitoring.files import alert_queries, board_queries, filled, rules
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, Server, running
from tests.server.test_prometheus import Ask, prometheus, scraping, wait_for

# A second prompt of the long set that has to wait is refused.
FLAGS = ["--served-model-name", "tiny", "--max-queued-requests", "long=1"]


def _complete(server: Server, first: int, prompt: int, tokens: int, **more: object) -> int:
    ids = [5 + (first + i) % 200 for i in range(prompt)]
    body = {"model": "tiny", "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return server.post("/v1/completions", body | more).status


def _refused_by_the_queue(server: Server) -> bool:
    with ThreadPoolExecutor(8) as pool:
        return 503 in pool.map(lambda first: _complete(server, first, 900, 1), range(8))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Ask]]:
    """A server to which everything has happened that dashboards show, and the Prometheus that looks on."""
    folder: Path = tmp_path_factory.mktemp("scraped")
    (folder / "server").mkdir()
    checkpoint = phi3_with_tokenizer(tmp_path_factory.mktemp("model"))
    with (
        running(folder / "server", str(checkpoint), *ENGINE, *FLAGS) as server,
        # On a busy machine a scrape takes more than a second; one that fails looks like a restart.
        prometheus(folder, scraping(server, "5s")) as ask,
    ):
        assert _complete(server, 0, 20, 3) == 200
        # The stream outgrows its set, and the second time finds its tokens in the cache.
        assert [_complete(server, 0, 250, 20) for _ in range(2)] == [200, 200]
        assert _complete(server, 0, 20, 3, temperature=-1) == 400
        assert any(_refused_by_the_queue(server) for _ in range(5))
        wait_for(ask, "sum(ropeswitch_switches_total)", 2)
        yield server, ask


@pytest.mark.full
def test_every_query_of_the_dashboards_has_an_answer(scraped: tuple[Server, Ask]) -> None:
    _, ask = scraped
    # A rate needs two scrapes.
    deadline = time.monotonic() + 60
    while missing := [asked.where for asked in board_queries() if not ask(filled(asked.query))]:
        assert time.monotonic() < deadline, missing
        time.sleep(1)


@pytest.mark.full
def test_no_alert_fires_on_a_healthy_server(scraped: tuple[Server, Ask]) -> None:
    """Prometheus understands each, and those that need no more than a moment are quiet."""
    _, ask = scraped
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    firing = [asked.where for asked in alert_queries() if asked.where not in recorded and ask(asked.query)]
    # The server has just refused prompts; it would have to go on for minutes.
    assert set(firing) <= {"RopeswitchQueueFull"}
