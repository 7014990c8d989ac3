"""``GET /v1/status``: returns the figures of the status page. Requires a key."""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, Field

from ropeswitch.server.app.rope_route import FactorSetInfo, RopeInfo
from ropeswitch.server.metrics import instruments
from ropeswitch.server.metrics.bands import OTHER, Bands
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.ui.history import History, LatencyPoint
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
    history: list[LatencyPoint] = Field(description="The last 15 minutes, oldest first.")
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
        measured: The process's measurements; None with ``--disable-log-stats``.
    """

    def __init__(self, model: str, rope: RopeInfo, registry: CollectorRegistry, measured: "Measured | None") -> None:
        self.model = model
        self.measured = measured
        self._rope = rope
        self._registry = registry
        self._lock = asyncio.Lock()
        self._read: tuple[float, bytes] = (-SHARED_SECONDS, b"")

    async def read(self) -> bytes:
        """Return the current :class:`Status` as JSON. Viewers share a reading for :data:`SHARED_SECONDS`."""
        async with self._lock:
            when, content = self._read
            if time.monotonic() - when < SHARED_SECONDS:
                return content
            running = [] if self.measured is None else await self.measured.running.read()
            # In a thread: there may be thousands of sequences, and many metric files to read.
            content = await asyncio.to_thread(self._content, running)
            self._read = time.monotonic(), content
            return content

    def _content(self, running: list[RunningSequence]) -> bytes:
        found, rope = None, self._rope
        if self.measured is not None:
            found = figures(Readings(self._registry), self.measured, running, rope.sets)
        status = Status(
            model=self.model,
            version=version("ropeswitch"),
            vllm_version=rope.vllm_version,
            sets=rope.sets,
            policy=rope.policy,
            angles=rope.angles,
            max_model_len=rope.max_model_len,
            figures=found,
        )
        return status.model_dump_json().encode()


@dataclass(frozen=True)
class Measured:
    """The measurements of one API server process.

    Attributes:
        metrics: The metrics by length.
        running: The sequences in flight.
        history: The latencies of the last minutes.
        names: The names of the factor sets.
    """

    metrics: LengthMetrics
    running: RunningSequences
    history: History
    names: Sequence[str]


@router.get("/v1/status", response_model=Status)
async def show_status(request: Request) -> Response:
    """Return the ladder in use, requests in flight, latencies and switches."""
    source: StatusSource = request.app.state.ropeswitch.status
    return Response(await source.read(), media_type="application/json", headers={"cache-control": "no-store"})


def figures(
    readings: Readings, measured: Measured, running: list[RunningSequence], ladder: Sequence[FactorSetInfo]
) -> Figures:
    """Return the figures for a ladder.

    Args:
        readings: The metrics of all API server processes.
        measured: What this process measures.
        running: Its sequences in flight.
        ladder: The sets in use, in order.
    """
    sets = [each.name for each in ladder]
    bands = measured.metrics.plan.bands
    requests = instruments.REQUESTS.name
    reasons = {each: readings.total(instruments.REJECTIONS, reason=each) for each in instruments.REASONS}
    return Figures(
        live=list(_live(readings, bands, ladder)),
        process=os.getpid(),
        # vLLM sets it where several processes share their metrics.
        processes="several" if "PROMETHEUS_MULTIPROC_DIR" in os.environ else "one",
        running=running,
        running_total=measured.running.total,
        history=measured.history.read(),
        events=list(_events(measured)),
        latency=list(_latencies(readings, bands)),
        switches=list(_switches(readings, sets)),
        outcomes={
            each: readings.total(requests, outcome=each)
            for each in dict.fromkeys((*instruments.OUTCOMES, *instruments.OUTSIDE))
        },
        rejections={reason: count for reason, count in reasons.items() if count},
    )


def _events(measured: Measured) -> Iterable[SwitchEvent]:
    now, bands = time.monotonic(), measured.metrics.plan.bands.names
    for when, (band, index), stall, computed, cached in reversed(list(measured.metrics.recent_switches)):
        yield SwitchEvent(
            seconds_ago=now - when,
            length_band=bands[band],
            factor_set=measured.names[index],
            recomputed_tokens=computed,
            cached_tokens=cached,
            stall=stall,
        )


def _live(readings: Readings, bands: Bands, ladder: Sequence[FactorSetInfo]) -> Iterable[LiveRequests]:
    """Yield every band with the set of its prompts, and other pairs that have sequences."""
    name, sets = instruments.LIVE.name, [each.name for each in ladder]
    ends = (
        (band, next((each for each in ladder if each.max_length >= end), ladder[-1]))
        for band, end in zip(bands.names, bands.ends, strict=True)
    )
    starts = [(band, each.name) for band, each in ends]
    seen = readings.values(name, "input_sequence_length", "factor_set")
    order = {each: position for position, each in enumerate((*bands.names, *sets, OTHER))}
    for band, factor_set in sorted({*starts, *seen}, key=lambda pair: (order[pair[0]], order[pair[1]])):
        here = {"input_sequence_length": band, "factor_set": factor_set}
        waiting = readings.total(name, state=instruments.WAITING, **here)
        generating = readings.total(name, state=instruments.GENERATING, **here)
        if (band, factor_set) in starts or waiting or generating:
            yield LiveRequests(length_band=band, factor_set=factor_set, waiting=waiting, generating=generating)


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


def _switches(readings: Readings, sets: list[str]) -> Iterable[Switches]:
    """Yield every set except the first, which no request switches into, and sets outside the ladder with switches."""
    seen = {factor_set for (factor_set,) in readings.values(instruments.SWITCHES.name, "factor_set")}
    for name in (*sets, *sorted(seen - {*sets, OTHER}), OTHER):
        count = readings.total(instruments.SWITCHES.name, factor_set=name)
        if name in sets[1:] or count:
            yield Switches(
                factor_set=name,
                count=count,
                recomputed_tokens=readings.total(instruments.RECOMPUTED.name, factor_set=name),
                cached_tokens=readings.total(instruments.CACHED.name, factor_set=name),
                stall=readings.times(instruments.STALL, factor_set=name),
            )
