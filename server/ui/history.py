"""Latencies of the last 15 minutes by length band, for the lines of the status page."""

import asyncio
import logging
import time
from collections import deque

from prometheus_client import CollectorRegistry
from pydantic import BaseModel, Field

from ropeswitch.server.metrics import instruments
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.instruments import Instrument
from ropeswitch.server.ui.readings import Buckets, Readings, quantile

_LOG = logging.getLogger(__name__)
SECONDS = 15.0
POINTS = 60
_LATENCIES = (instruments.TTFT, instruments.GAP)


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
    """Samples the latency histograms every :data:`SECONDS`, and keeps the last :data:`POINTS` intervals.

    Args:
        registry: The registry that ``/metrics`` reads.
        bands: The length bands of the metrics.
    """

    def __init__(self, registry: CollectorRegistry, bands: Bands) -> None:
        self._registry = registry
        self._bands = bands
        self._points: deque[tuple[float, list[BandLatency]]] = deque(maxlen=POINTS)
        self._before: dict[tuple[Instrument, str], Buckets] = {}

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
        readings, first = Readings(self._registry), not self._before
        found = {
            (instrument, band): readings.buckets(instrument, input_sequence_length=band)
            for instrument in _LATENCIES
            for band in self._bands.names
        }
        if not first:
            latencies = [
                BandLatency(
                    length_band=band,
                    time_to_first_token=_p95(self._before[instruments.TTFT, band], found[instruments.TTFT, band]),
                    inter_token_latency=_p95(self._before[instruments.GAP, band], found[instruments.GAP, band]),
                )
                for band in self._bands.names
            ]
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
