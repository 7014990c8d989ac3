"""A real Prometheus, for tests of what scrapes a server; ``promtool`` reads our metrics and the page's queries."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeswitch.server.metrics.instruments import INSTRUMENTS
from tests.docs.pages import ROOT, blocks
from tests.server.observed import generate
from tests.server.running import Server, free_port

# Where make test-full unpacks it (requirements/debian.py).
FOLDER = ROOT / ".venv" / "debian" / "prometheus" / "usr" / "bin"

Ask = Callable[[str], list[dict[str, Any]]]


@contextmanager
def prometheus(folder: Path, server: Server) -> Iterator[Ask]:
    """A Prometheus that scrapes a server; gives a function that asks it."""
    config, port = folder / "prometheus.yml", free_port()
    jobs = [{"job_name": "ropeswitch", "static_configs": [{"targets": [server.url.removeprefix("http://")]}]}]
    # On a busy machine a scrape takes more than a second, and at most the interval; one that fails looks like a restart.
    scraping = {"global": {"scrape_interval": "5s"}, "scrape_configs": jobs}
    config.write_text(yaml.safe_dump(scraping), encoding="utf-8")
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


def wait_for(ask: Ask, query: str, expected: float) -> None:
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError):  # it has not started yet
            if [float(each["value"][1]) for each in ask(query)] == [expected]:
                return
        assert time.monotonic() < deadline, f"{query} did not become {expected}"
        time.sleep(0.2)


@pytest.mark.full
def test_promtool_has_no_objections_to_our_metrics_and_reads_the_queries_of_the_page(
    server: Server, tmp_path: Path
) -> None:
    assert generate(server, 250, 20).status == 200
    text = server.get("/metrics").text
    ours = "".join(f"{line}\n" for line in text.splitlines() if re.match(r"(# \w+ )?ropeswitch_", line))
    assert all(f"# HELP {each.name}" in ours for each in INSTRUMENTS)
    checked = subprocess.run(
        [FOLDER / "promtool", "check", "metrics"], input=ours, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    page = ROOT / "docs" / "metrics.md"
    queries = [query for block in blocks(page, "text") for query in re.split(r"\n(?=\w)", block.strip())]
    records = [{"record": f"q{place}", "expr": query} for place, query in enumerate(queries)]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "page", "rules": records}]}), encoding="utf-8")
    command = [FOLDER / "promtool", "check", "rules", rules]
    assert "3 rules found" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
