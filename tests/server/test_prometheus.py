"""A real Prometheus scrapes a server: its quantiles are those that clients see, and ``promtool`` has no objections."""

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeswitch.server.metrics.instruments import END_TO_END, GAP, INSTRUMENTS, TTFT, Instrument
from tests.docs.pages import ROOT, blocks
from tests.server.conftest import MODEL
from tests.server.running import ENGINE, Server, free_port, running

# Where make test-full unpacks it (requirements/debian.py).
FOLDER = ROOT / ".venv" / "debian" / "prometheus" / "usr" / "bin"

Ask = Callable[[str], list[dict[str, Any]]]


def scraping(server: Server, interval: str = "1s") -> Any:
    """The configuration of a Prometheus that scrapes a server; a scrape may take as long as the interval."""
    static = {"targets": [server.url.removeprefix("http://")]}
    jobs = [{"job_name": "ropeswitch", "static_configs": [static]}]
    return {"global": {"scrape_interval": interval}, "scrape_configs": jobs}


@contextmanager
def prometheus(folder: Path, configuration: Any) -> Iterator[Ask]:
    """A Prometheus of a configuration; gives a function that asks it."""
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    command = [FOLDER / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
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


def value(ask: Ask, query: str) -> float:
    """The one value of a query, not a number while there is none."""
    result = ask(query)
    return float(result[0]["value"][1]) if len(result) == 1 else math.nan


def wait_for(ask: Ask, query: str, expected: float) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if value(ask, query) == expected:
                return
        except OSError:
            pass  # it has not started yet
        assert time.monotonic() < deadline, f"{query} did not become {expected}"
        time.sleep(0.2)


def client_times(server: Server, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds to the first token and to the last, as a client of a stream sees them."""
    body = {"model": MODEL, "prompt": [5] * prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    start, times = time.monotonic(), []
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if line.startswith(b"data: {"):
                times.append(time.monotonic() - start)
    return times[0], times[-1]


@pytest.mark.full
def test_prometheus_tells_the_quantiles_that_clients_see(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    flags = ["--served-model-name", MODEL, "--no-enable-prefix-caching"]
    with (
        running(tmp_path / "server", str(checkpoint), *ENGINE, *flags) as server,
        prometheus(tmp_path, scraping(server)) as ask,
    ):
        # The first requests pay for what is loaded or compiled, some of it outside the engine.
        for _ in range(3):
            client_times(server, 200, 20)
        tokens = range(100, 220, 10)
        seen = [client_times(server, 800, count) for count in tokens]
        here = '{input_sequence_length="257-1024", factor_set="long"}'
        wait_for(ask, f"sum({END_TO_END.name}_count{here})", len(tokens))
        wait_for(ask, f"sum({GAP.name}_count{here})", sum(tokens) - len(tokens))

        def quantile(metric: Instrument, q: float) -> float:
            return value(ask, f"histogram_quantile({q}, sum by (le) ({metric.name}_bucket{here}))")

        # A client sees what HTTP takes too: on a busy machine much of a first token's time, little of a whole answer's.
        for q in (0.1, 0.5, 0.9):
            firsts, ends = (sorted(each)[math.ceil(q * len(seen)) - 1] for each in zip(*seen, strict=True))
            assert quantile(END_TO_END, q) == pytest.approx(ends, rel=0.1, abs=0.1), q
            assert 0 < quantile(TTFT, q) < 1.1 * firsts, q
        # Tokens reach a client together that were made one after another, so there is only their mean to compare with.
        mean = sum(end - first for first, end in seen) / (sum(tokens) - len(tokens))
        assert 0.3 * mean < quantile(GAP, 0.5) < 1.5 * mean

        # Queries of the page are ones that Prometheus understands, and their metrics are there.
        page = ROOT / "docs" / "metrics.md"
        queries = [query for block in blocks(page, "text") for query in re.split(r"\n(?=\w)", block.strip())]
        assert len(queries) == 3
        for query in queries:
            ask(query)
        text = server.get("/metrics").text
        ours = "".join(f"{line}\n" for line in text.splitlines() if re.match(r"(# \w+ )?ropeswitch_", line))
        assert all(f"# HELP {each.name}" in ours for each in INSTRUMENTS)
        checked = subprocess.run(
            [FOLDER / "promtool", "check", "metrics"], input=ours, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
