"""The per-length metrics of one API server process."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.metrics import instruments
from ropeswitch.server.metrics.instruments import INSTRUMENTS, LENGTH_REASONS, NOWHERE, Instrument
from ropeswitch.server.metrics.series import BandSet, SeriesPlan, bounds


class LengthMetrics:
    """One per API server process, made after vLLM has set Prometheus up.

    Every process adds its own requests only, and ``/metrics`` of any process sums the files of all. An engine is None until
    one is chosen.

    Args:
        ladder: The factor sets that the engine was started with.
        model_name: Value of the label ``model_name``, as in vLLM's own metrics.
        registry: Where to register the metrics.

    Attributes:
        recent_switches: The process's last 50 switches, oldest first: the monotonic time at which each was added, band and
            set, seconds since the last output, recomputed tokens, tokens in the cache.
    """

    def __init__(self, ladder: FactorLadder, model_name: str, registry: CollectorRegistry = REGISTRY) -> None:
        # They double the counters; one API server process alone exports them, several together do not.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.plan = SeriesPlan(ladder)
        self.recent_switches: deque[tuple[float, BandSet, float, int, int]] = deque(maxlen=50)
        self._model_name = model_name
        every = (*INSTRUMENTS, instruments.POLICY, instruments.REJECTIONS)
        self._metrics = {each: self._metric(each, registry) for each in every}
        self._known: dict[tuple[Instrument, int | None, BandSet, str | None], Any] = {}

    def _metric(self, instrument: Instrument, registry: CollectorRegistry) -> Any:
        name, text, labels = instrument.name, instrument.text, instrument.labels
        if instrument.kind == "gauge":
            return Gauge(name, text, labels, multiprocess_mode="livesum", registry=registry)
        if instrument.kind == "counter":
            return Counter(name, text, labels, registry=registry)
        ends = bounds(instrument, self.plan.ratio)
        return Histogram(name, text, labels, buckets=ends, registry=registry)

    def add_first(
        self, engine: int | None, band_set: BandSet, seconds: float, prompt: int, tokens: int, chosen_by: str
    ) -> None:
        """Add a first output: seconds since the arrival, tokens of prompt and output, one of ``CHOSEN_BY``."""
        self._metrics[instruments.POLICY].labels(self._model_name, chosen_by).inc()
        if tokens:
            self._series(instruments.GENERATED_TOKENS, engine, band_set).inc(tokens)
        self._series(instruments.TTFT, engine, band_set).observe(seconds)
        self._series(instruments.PROMPT_TOKENS, engine, band_set).inc(prompt)

    def add_later(self, engine: int | None, band_set: BandSet, gaps: Sequence[float], tokens: int) -> None:
        """Add outputs of a sequence that are not its first: the seconds before each, and their tokens."""
        self._series(instruments.GENERATED_TOKENS, engine, band_set).inc(tokens)
        observe = self._series(instruments.GAP, engine, band_set).observe
        for gap in gaps:
            observe(gap)

    def add_switch(self, engine: int | None, band_set: BandSet, stall: float, computed: int, cached: int) -> None:
        """Add a switch: new band and set, seconds since the last output, recomputed tokens, tokens in the cache."""
        self.recent_switches.append((time.monotonic(), band_set, stall, computed, cached))
        self._series(instruments.SWITCHES, engine, band_set).inc()
        self._series(instruments.STALL, engine, band_set).observe(stall)
        self._series(instruments.RECOMPUTED, engine, band_set).inc(computed)
        self._series(instruments.CACHED, engine, band_set).inc(cached)

    def add_ended(self, engine: int | None, first: BandSet, last: BandSet, outcome: str, times: Any) -> None:
        """Add a sequence that ended in an engine, with the band and set of its first and last output.

        ``times`` is vLLM's ``FinishedRequestStats``; None for a sequence that ended without a last output.
        """
        self._series(instruments.REQUESTS, engine, last, outcome).inc()
        if times is None or outcome not in instruments.ANSWERED:
            return
        self._series(instruments.END_TO_END, engine, last).observe(times.e2e_latency)
        self._series(instruments.QUEUE, engine, first).observe(times.queued_time)
        self._series(instruments.PREFILL, engine, first).observe(times.prefill_time)
        if times.num_generation_tokens > 1:
            self._series(instruments.DECODE, engine, last).observe(times.decode_time)
            self._series(instruments.PER_OUTPUT_TOKEN, engine, last).observe(times.mean_time_per_output_token)

    def add_live(self, band_set: BandSet, state: str, change: int) -> None:
        """Add ``change`` to the number of sequences in a state, one of the values of ``instruments.LIVE``."""
        self._series(instruments.LIVE, None, band_set, state).inc(change)

    def count_outside(self, outcome: str, length: int | None = None) -> None:
        """Count a request that never reached an engine, by outcome (``instruments.OUTSIDE``) and prompt tokens, if known."""
        band = self.plan.bands.name(length)
        self._metrics[instruments.REQUESTS].labels(self._model_name, NOWHERE, band, NOWHERE, outcome).inc()

    def count_rejection(self, reason: str, length: int | None = None) -> None:
        """Count a refused request, by one of ``instruments.REASONS`` and, for ``LENGTH_REASONS``, its prompt tokens."""
        known = length if reason in LENGTH_REASONS else None
        self.count_outside("rejected", known)
        labels = self._model_name, self.plan.bands.name(known), reason
        self._metrics[instruments.REJECTIONS].labels(*labels).inc()

    def _series(self, instrument: Instrument, engine: int | None, band_set: BandSet, value: str | None = None) -> Any:
        """Return the counter, gauge or histogram of these labels."""
        key = (instrument, engine, band_set, value)
        if key not in self._known:
            where = () if instrument.live else (NOWHERE if engine is None else str(engine),)
            extra = () if value is None else (value,)
            labels = (self._model_name, *where, *self.plan.labels(instrument, band_set), *extra)
            self._known[key] = self._metrics[instrument].labels(*labels)
        return self._known[key]
