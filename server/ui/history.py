"""Latencies of the last 15 minutes by length band, for the lines of the status page."""

import asyncio
import logging
import time
from collections import deque

from prometheus_client import CollectorRegistry
from pydantic import BaseModel, Field

from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.instruments import GAP, TTFT
from ropeswitch.server.ui.readings import Buckets, Readings, quantile

_LOG = logging.getLogger(__name__)
SECONDS = 15.0
POINTS = 60


class BandLatency(BaseModel):
    """The 95th percentiles of one length band in one interval, in seconds; null without observations."""

    length_band: str
    time_to_first_token: float | None
    inter_token_latency: float | None


class LatencyPoint(BaseModel):
    """One interval of 15 s."""

    seconds_ago: float = Field(description="Seconds since the interval ended.")
    bands: list[BandLatency]


class History:
    """Samples the latency histograms in ``registry`` every :data:`SECONDS`, and keeps the last :data:`POINTS` intervals."""

    def __init__(self, registry: CollectorRegistry, bands: Bands) -> None:
        self._registry = registry
        self._bands = bands.names
        self._points: deque[tuple[float, list[BandLatency]]] = deque(maxlen=POINTS)
        # Buckets of the time to first token and of the gaps, by band.
        self._before: dict[str, list[Buckets]] = {}

    async def watch(self) -> None:
        """Sample for as long as the server runs."""
        while True:
            # In a thread: with many API server processes there are many files to read.
            try:
                await asyncio.to_thread(self.sample)
            except Exception:
                # Such as a metric file that a starting process has not filled yet.
                _LOG.exception("the latency history lacks an interval")
            await asyncio.sleep(SECONDS)

    def sample(self) -> None:
        """Read the histograms, which ends an interval."""
        readings, before = Readings(self._registry), self._before
        found = {
            band: [readings.buckets(each, input_sequence_length=band) for each in (TTFT, GAP)] for band in self._bands
        }
        if before:
            latencies = []
            for band in self._bands:
                first, gap = (_p95(*pair) for pair in zip(before[band], found[band], strict=True))
                latencies.append(BandLatency(length_band=band, time_to_first_token=first, inter_token_latency=gap))
            self._points.append((time.monotonic(), latencies))
        self._before = found

    def read(self) -> list[LatencyPoint]:
        """Return the intervals, oldest first."""
        now = time.monotonic()
        return [LatencyPoint(seconds_ago=now - end, bands=bands) for end, bands in list(self._points)]


def _p95(before: Buckets, after: Buckets) -> float | None:
    """Return the 95th percentile of a histogram's observations between two readings; None without any."""
    counted = dict(before)
    between = [(end, count - counted.get(end, 0.0)) for end, count in after]
    return quantile(between, 0.95) if between and between[-1][1] > 0 else None
