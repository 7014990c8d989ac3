"""``GET /v1/status``: returns the figures of the status page. Requires a key."""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, Field

from ropeswitch.server.app.routes import FactorSetInfo, RopeInfo
from ropeswitch.server.metrics import instruments
from ropeswitch.server.metrics.bands import OTHER, Bands
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.ui.readings import Readings, Times
from ropeswitch.server.ui.running import RunningSequence, RunningSequences

router = APIRouter()

# Seconds for which viewers share a reading: less than the page's refresh period of 2 s.
SHARED_SECONDS = 1.0


class LiveRequests(BaseModel):
    """Sequences in flight, of one length band in one factor set."""

    length_band: str
    factor_set: str
    waiting: int = Field(description="Sequences that wait for their first token.")
    generating: int = Field(description="Sequences past their first token.")


class Latencies(BaseModel):
    """Latencies of one length band since the server started."""

    length_band: str
    time_to_first_token: Times
    inter_token_latency: Times
    end_to_end: Times


class Switches(BaseModel):
    """Switches into one factor set since the server started."""

    factor_set: str
    count: int
    recomputed_tokens: int
    cached_tokens: int = Field(description="Tokens found in the prefix cache instead.")
    stall: Times


class SwitchEvent(BaseModel):
    """One switch of a sequence."""

    seconds_ago: float
    length_band: str
    factor_set: str = Field(description="The set in which the sequence continued.")
    recomputed_tokens: int
    cached_tokens: int
    stall: float = Field(description="Seconds between the last output before the switch and the first one after it.")


class Figures(BaseModel):
    """Figures from the metrics of all API server processes, and sequences and events of the process that answers."""

    live: list[LiveRequests]
    process: int = Field(description="ID of the API server process that answers.")
    processes: Literal["one", "several"] = Field(description="API server processes of this server.")
    running: list[RunningSequence] = Field(description="Sequences in flight in this API server process, at most 2,000.")
    running_total: int = Field(description="Sequences in flight in this API server process.")
    events: list[SwitchEvent] = Field(description="The last 50 switches in this API server process, newest first.")
    latency: list[Latencies]
    switches: list[Switches]
    outcomes: dict[str, int] = Field(description="Sequences that ended, and requests that never reached an engine.")
    rejections: dict[str, int] = Field(description="Refused requests by reason; reasons without any are left out.")


class Status(BaseModel):
    """The server and its figures."""

    model: str
    version: str = Field(description="ropeswitch's version.")
    vllm_version: str
    sets: list[FactorSetInfo] = Field(description="The ladder in use.")
    policy: str = Field(description="Ladder policy of requests that choose none: length or reserve.")
    angles: str
    max_model_len: int
    figures: Figures | None = Field(description="Null with --disable-log-stats, where nothing is measured.")


class StatusSource:
    """The data that the route reads, one of the server's parts.

    Args:
        model: The served model's name.
        rope: The ladder in use.
        registry: The registry that ``/metrics`` reads.
        metrics: The process's metrics; None with ``--disable-log-stats``, where ``running`` is not read.
        running: Its sequences in flight.
    """

    def __init__(
        self,
        model: str,
        rope: RopeInfo,
        registry: CollectorRegistry,
        metrics: LengthMetrics | None,
        running: RunningSequences,
    ) -> None:
        self.model = model
        self._rope, self._registry, self._metrics, self._running = rope, registry, metrics, running
        self._lock = asyncio.Lock()
        self._read: tuple[float, bytes] = (-SHARED_SECONDS, b"")

    async def read(self) -> bytes:
        """Return the current :class:`Status` as JSON. Viewers share a reading for :data:`SHARED_SECONDS`."""
        async with self._lock:
            when, content = self._read
            if time.monotonic() - when < SHARED_SECONDS:
                return content
            running = [] if self._metrics is None else await self._running.read()
            # In a thread: there may be thousands of sequences, and many metric files to read.
            content = await asyncio.to_thread(self._content, running)
            self._read = time.monotonic(), content
            return content

    def _content(self, running: list[RunningSequence]) -> bytes:
        figures = None if self._metrics is None else self._figures(self._metrics, running)
        ladder = self._rope.model_dump(include={"sets", "policy", "angles", "max_model_len", "vllm_version"})
        found = Status(model=self.model, version=version("ropeswitch"), figures=figures, **ladder)
        return found.model_dump_json().encode()

    def _figures(self, metrics: LengthMetrics, running: list[RunningSequence]) -> Figures:
        bands, sets = metrics.plan.bands, [each.name for each in self._rope.sets]
        readings, now = Readings(self._registry), time.monotonic()
        outcomes = readings.sums(instruments.REQUESTS.name, "outcome")
        rejections = readings.sums(instruments.REJECTIONS.name, "reason")
        return Figures(
            live=_live(readings, bands, sets),
            process=os.getpid(),
            # vLLM sets it where several processes share their metrics.
            processes="several" if "PROMETHEUS_MULTIPROC_DIR" in os.environ else "one",
            running=running,
            running_total=self._running.total,
            events=[
                SwitchEvent(
                    seconds_ago=now - when,
                    length_band=bands.names[band],
                    factor_set=sets[index],
                    recomputed_tokens=computed,
                    cached_tokens=cached,
                    stall=stall,
                )
                for when, (band, index), stall, computed, cached in reversed(list(metrics.recent_switches))
            ],
            latency=list(_latencies(readings, bands)),
            switches=list(_switches(readings, sets)),
            outcomes={each: outcomes[(each,)] for each in dict.fromkeys((*instruments.OUTCOMES, *instruments.OUTSIDE))},
            rejections={each: count for each in instruments.REASONS if (count := rejections[(each,)])},
        )


@router.get("/v1/status", response_model=Status)
async def show_status(request: Request) -> Response:
    """Return the ladder in use, requests in flight, latencies and switches."""
    source: StatusSource = request.app.state.ropeswitch.status
    return Response(await source.read(), media_type="application/json", headers={"cache-control": "no-store"})


def _live(readings: Readings, bands: Bands, sets: Sequence[str]) -> list[LiveRequests]:
    """Return every band with the set of its prompts, and other pairs that have sequences."""
    counts = readings.sums(instruments.LIVE.name, "input_sequence_length", "factor_set", "state")
    starts = {(band, sets[index]) for band, index in zip(bands.names, bands.sets, strict=True)}
    order = (*bands.names, *sets, OTHER).index
    return [
        LiveRequests(
            length_band=band,
            factor_set=name,
            waiting=counts[band, name, instruments.WAITING],
            generating=counts[band, name, instruments.GENERATING],
        )
        for band, name in sorted(
            starts | {(band, name) for (band, name, _), count in counts.items() if count},
            key=lambda pair: (order(pair[0]), order(pair[1])),
        )
    ]


def _latencies(readings: Readings, bands: Bands) -> Iterable[Latencies]:
    for band in (*bands.names, OTHER):
        latencies = Latencies(
            length_band=band,
            time_to_first_token=readings.times(instruments.TTFT, input_sequence_length=band),
            inter_token_latency=readings.times(instruments.GAP, input_sequence_length=band),
            end_to_end=readings.times(instruments.END_TO_END, input_sequence_length=band),
        )
        if band != OTHER or latencies.inter_token_latency.count or latencies.time_to_first_token.count:
            yield latencies


def _switches(readings: Readings, sets: Sequence[str]) -> Iterable[Switches]:
    """Yield every set except the first, which no request switches into, and :data:`OTHER` if it has switches."""
    counts, recomputed, cached = (
        readings.sums(each.name, "factor_set")
        for each in (instruments.SWITCHES, instruments.RECOMPUTED, instruments.CACHED)
    )
    for name in (*sets[1:], OTHER):
        if name != OTHER or counts[(OTHER,)]:
            yield Switches(
                factor_set=name,
                count=counts[(name,)],
                recomputed_tokens=recomputed[(name,)],
                cached_tokens=cached[(name,)],
                stall=readings.times(instruments.STALL, factor_set=name),
            )
