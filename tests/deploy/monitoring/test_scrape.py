"""A real Prometheus that scrapes a real server has an answer to every query of the dashboards; its alerts stay quiet."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeswitch.server.metrics.instruments import INSTRUMENTS
from tests.deploy.monitoring.files import PROMTOOL, alerts, board_queries, filled
from tests.server.asking import wait_until
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, Server, free_port, running

# A second prompt of the long set that has to wait is refused.
FLAGS = ["--served-model-name", "tiny", "--max-queued-requests", "long=1"]

Ask = Callable[[str], list[dict[str, Any]]]


@contextmanager
def prometheus(folder: Path, server: Server) -> Iterator[Ask]:
    """A Prometheus that scrapes a server; gives a function that asks it."""
    config, port = folder / "prometheus.yml", free_port()
    jobs = [{"job_name": "ropeswitch", "static_configs": [{"targets": [server.url.removeprefix("http://")]}]}]
    # On a busy machine a scrape takes more than a second, and at most the interval; one that fails looks like a restart.
    scraping = {"global": {"scrape_interval": "5s"}, "scrape_configs": jobs}
    config.write_text(yaml.safe_dump(scraping), encoding="utf-8")
    command = [
        str(PROMTOOL.with_name("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )

    def ask(query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=30) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(timeout=30)


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

        def switched() -> bool:
            with suppress(OSError):  # it has not started yet
                return [float(each["value"][1]) for each in ask("sum(ropeswitch_switches_total)")] == [2]
            return False

        wait_until(switched, "two switches", 60)
        # A rate needs two scrapes.
        deadline = time.monotonic() + 60
        while missing := [asked.where for asked in board_queries() if not ask(filled(asked.query))]:
            assert time.monotonic() < deadline, missing
            time.sleep(1)
        firing = {name for name, alert in alerts().items() if ask(alert["expr"])}
        # The server has just refused prompts; it would have to go on for minutes.
        assert firing <= {"RopeswitchQueueFull"}
        # Promtool has no objections to our metrics.
        lines = server.get("/metrics").text.splitlines()
    ours = "".join(f"{line}\n" for line in lines if re.match(r"(# \w+ )?ropeswitch_", line))
    assert all(f"# HELP {each.name}" in ours for each in INSTRUMENTS)
    command = [str(PROMTOOL), "check", "metrics"]
    checked = subprocess.run(command, input=ours, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
