"""Scrapes the server's metrics during a run, for comparison with the client's measurements."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ropeswitch.factors.evaluate.endpoint import Endpoint
from ropeswitch.loadtests.client.records import Sample

NAMES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "ropeswitch_switches_total",
    "ropeswitch_switch_recomputed_tokens_total",
    "ropeswitch_switch_cached_tokens_total",
    "ropeswitch_queued_requests",
)
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
)
WANTED = frozenset(NAMES) | {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}


@dataclass
class Scraper:
    """Scrapes ``/metrics`` at an interval. Pages are kept as text and parsed after the run.

    Attributes:
        session: Connections separate from those of the requests under test.
        endpoint: The server.
        seconds: Seconds between scrapes.
        key: API key for the metrics; None to use the endpoint's.
        problem: The last problem with scraping; empty if there was none.
    """

    session: aiohttp.ClientSession
    endpoint: Endpoint
    seconds: float
    key: str | None = None
    problem: str = ""
    _pages: list[tuple[float, str]] = field(default_factory=list)

    async def run(self) -> None:
        """Scrape at the interval, first after one interval, until cancelled or the server refuses."""
        while True:
            await asyncio.sleep(self.seconds)
            if not await self.scrape():
                return

    async def scrape(self) -> bool:
        """Scrape once; return False if the server has no metrics or refuses the key."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else self.endpoint.headers
        at = time.perf_counter()
        try:
            async with self.session.get(self.endpoint.url + "/metrics", headers=headers) as response:
                page = await response.text()
                if response.status in (401, 403, 404):
                    self.problem = f"/metrics answered {response.status}"
                    return False
                if response.status == 200:
                    self._pages.append((at, _wanted(page)))
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeDecodeError) as error:
            # A server too busy to answer is scraped again later; the samples show the gap.
            self.problem = f"/metrics did not answer: {error}"
        return True

    def samples(self, start: float) -> tuple[Sample, ...]:
        """Return the parsed samples.

        Args:
            start: The run's start, by ``time.perf_counter()``.
        """
        found = []
        for at, page in self._pages:
            try:
                found.append(Sample(round(at - start, 3), parse(page)))
            except (ValueError, LookupError) as error:
                self.problem = f"/metrics has a malformed metric: {error}"
        return tuple(found)


def _wanted(page: str) -> str:
    """Keep only the lines that are parsed: a run of hours keeps thousands of pages."""
    lines = [line for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] in WANTED]
    return "\n".join(lines) + "\n"


def parse(page: str) -> dict[str, float]:
    """Parse the series that reports show from a page in Prometheus' text format; see :class:`Sample`."""
    values: dict[str, list[float]] = defaultdict(list)
    for family in text_string_to_metric_families(_wanted(page)):
        for sample in family.samples:
            edge = f'{{le="{sample.labels["le"]}"}}' if "le" in sample.labels else ""
            values[sample.name + edge].append(sample.value)
    return {name: _together(name, found) for name, found in values.items()}


def _together(name: str, values: Sequence[float]) -> float:
    # Shares of each engine's memory do not add up; everything else does.
    return max(values) if name.endswith("_perc") else sum(values)
