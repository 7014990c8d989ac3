"""The per-length metrics of one API server process, to which its steps and requests add their values."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.metrics import instruments
from ropeswitch.server.metrics.collectors import StepCounter, StepHistogram
from ropeswitch.server.metrics.instruments import INSTRUMENTS, Instrument
from ropeswitch.server.metrics.series import BandSet, SeriesPlan, bounds
from ropeswitch.server.metrics.track import Track


@dataclass
class Finished:
    """A sequence that ended in an engine.

    Attributes:
        first: The band and set of its first output.
        last: The band and set of its last output.
        outcome: One of ``instruments.OUTCOMES``.
        times: ``vllm.v1.metrics.stats.FinishedRequestStats``, in seconds.
    """

    first: BandSet
    last: BandSet
    outcome: str
    times: Any


@dataclass
class Step:
    """Values to record from the outputs of one engine step.

    Attributes:
        later: Outputs that are not a sequence's first: band and set, seconds between them, tokens.
        begun: Tracks of the sequences that had their first output.
        firsts: First outputs: band and set, seconds since the request arrived, prompt tokens, tokens.
        switches: Switches of sets: band and set, seconds since the last output, recomputed tokens, tokens in the cache.
        finished: Sequences that ended.
    """

    later: list[tuple[BandSet, list[float], int]] = field(default_factory=list)
    begun: list[Track] = field(default_factory=list)
    firsts: list[tuple[BandSet, float, int, int]] = field(default_factory=list)
    switches: list[tuple[BandSet, float, int, int]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class LengthMetrics:
    """One per API server process, made after vLLM has set Prometheus up.

    Every process adds its own requests only, and Prometheus's client sums the files of all processes when ``/metrics`` is
    read. So nothing is counted twice, regardless of the number of processes and engines.

    Args:
        ladder: The factor sets that the engine was started with.
        model_name: Value of the label ``model_name``, as in vLLM's own metrics.
        registry: Where to register the metrics.

    Attributes:
        recent_switches: The process's last 50 switches, oldest first, each with the monotonic time at which it was added.
    """

    def __init__(
        self,
        ladder: FactorLadder,
        model_name: str,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.plan = SeriesPlan(ladder)
        self._model_name = model_name
        self._histograms: dict[Instrument, StepHistogram] = {}
        self._counters: dict[Instrument, StepCounter] = {}
        for each in INSTRUMENTS:
            if each.kind == "histogram":
                ends = bounds(each, self.plan.ratio)
                self._histograms[each] = StepHistogram(
                    each.name, each.text, each.labels, buckets=ends, registry=registry
                )
            elif each.kind == "counter":
                self._counters[each] = StepCounter(each.name, each.text, each.labels, registry=registry)
        live = instruments.LIVE
        self._live = Gauge(live.name, live.text, live.labels, multiprocess_mode="livesum", registry=registry)
        self._rejections = StepCounter(
            instruments.REJECTIONS,
            instruments.REJECTIONS_TEXT,
            instruments.REJECTIONS_LABELS,
            registry=registry,
        )
        self._policies = StepCounter(
            instruments.POLICY, instruments.POLICY_TEXT, instruments.POLICY_LABELS, registry=registry
        )
        self.recent_switches: deque[tuple[float, tuple[BandSet, float, int, int]]] = deque(maxlen=50)
        self._known_live: dict[tuple[BandSet, str], Gauge] = {}
        self._known_histograms: dict[tuple[Instrument, int, BandSet], StepHistogram] = {}
        self._known_counters: dict[tuple[Instrument, int | None, BandSet, str | None], StepCounter] = {}

    def add_step(self, step: Step, engine: int) -> None:
        """Add the statistics of one step of an engine."""
        for track in step.begun:
            track.engine = engine
            self._policies.labels(self._model_name, track.placement.chosen_by).inc()
        for band_set, gaps, tokens in step.later:
            self.add_later(engine, band_set, gaps, tokens)
        for band_set, seconds, prompt, tokens in step.firsts:
            if tokens:
                self._counter(instruments.GENERATED_TOKENS, engine, band_set).inc(tokens)
            self._histogram(instruments.TTFT, engine, band_set).add(seconds)
            self._counter(instruments.PROMPT_TOKENS, engine, band_set).inc(prompt)
        for switch in step.switches:
            band_set, stall, computed, cached = switch
            self.recent_switches.append((time.monotonic(), switch))
            self._counter(instruments.SWITCHES, engine, band_set).inc()
            self._histogram(instruments.STALL, engine, band_set).add(stall)
            self._counter(instruments.RECOMPUTED, engine, band_set).inc(computed)
            self._counter(instruments.CACHED, engine, band_set).inc(cached)
        for finished in step.finished:
            self._finish(finished, engine)

    def add_later(self, engine: int, band_set: BandSet, gaps: Sequence[float], tokens: int) -> None:
        """Add outputs of a sequence that are not its first; see :class:`Step`."""
        if gaps:
            self._counter(instruments.GENERATED_TOKENS, engine, band_set).inc(tokens)
            self._histogram(instruments.GAP, engine, band_set).add(*gaps)

    def add_live(self, band_set: BandSet, state: str, change: int) -> None:
        """Add ``change`` to the number of sequences in a state, one of the values of ``instruments.LIVE``."""
        if (band_set, state) not in self._known_live:
            labels = self.plan.labels(instruments.LIVE, band_set)
            self._known_live[band_set, state] = self._live.labels(self._model_name, *labels, state)
        self._known_live[band_set, state].inc(change)

    def count_ended(self, engine: int | None, band_set: BandSet, outcome: str) -> None:
        """Count a sequence that ended without its last output; its engine is None if none was chosen yet."""
        self._counter(instruments.REQUESTS, engine, band_set, outcome).inc()

    def count_outside(self, outcome: str, length: int | None = None) -> None:
        """Count a request that never reached an engine.

        Args:
            outcome: One of ``instruments.OUTSIDE``.
            length: Tokens of its prompt; None if they were not counted.
        """
        nowhere, band = instruments.NOWHERE, self.plan.bands.name(length)
        self._counters[instruments.REQUESTS].labels(self._model_name, nowhere, band, nowhere, outcome).inc()

    def count_rejection(self, reason: str, length: int | None = None) -> None:
        """Count a request that was refused.

        Args:
            reason: One of ``instruments.REASONS``.
            length: Tokens of its prompt; used only for ``instruments.LENGTH_REASONS``.

        Raises:
            ValueError: for an unknown reason.
        """
        if reason not in instruments.REASONS:
            raise ValueError(f"reason: {reason!r} must be one of {', '.join(instruments.REASONS)}")
        known = length if reason in instruments.LENGTH_REASONS else None
        self.count_outside("rejected", known)
        self._rejections.labels(self._model_name, self.plan.bands.name(known), reason).inc()

    def _finish(self, finished: Finished, engine: int) -> None:
        first, last, times = finished.first, finished.last, finished.times
        self._counter(instruments.REQUESTS, engine, last, finished.outcome).inc()
        if finished.outcome not in instruments.ANSWERED:
            return
        self._histogram(instruments.END_TO_END, engine, last).add(times.e2e_latency)
        self._histogram(instruments.QUEUE, engine, first).add(times.queued_time)
        self._histogram(instruments.PREFILL, engine, first).add(times.prefill_time)
        if times.num_generation_tokens > 1:
            self._histogram(instruments.DECODE, engine, last).add(times.decode_time)
            per_token = times.mean_time_per_output_token
            self._histogram(instruments.PER_OUTPUT_TOKEN, engine, last).add(per_token)

    def _histogram(self, instrument: Instrument, engine: int, band_set: BandSet) -> StepHistogram:
        key = (instrument, engine, band_set)
        if key not in self._known_histograms:
            values = (self._model_name, str(engine), *self.plan.labels(instrument, band_set))
            self._known_histograms[key] = self._histograms[instrument].labels(*values)
        return self._known_histograms[key]

    def _counter(
        self, instrument: Instrument, engine: int | None, band_set: BandSet, value: str | None = None
    ) -> StepCounter:
        key = (instrument, engine, band_set, value)
        if key not in self._known_counters:
            where = instruments.NOWHERE if engine is None else str(engine)
            labels = (self._model_name, where, *self.plan.labels(instrument, band_set))
            values = labels if value is None else (*labels, value)
            self._known_counters[key] = self._counters[instrument].labels(*values)
        return self._known_counters[key]
