"""``vllm.v1.engine.output_processor.OutputProcessor``: subclassed for metrics, access log, traces and long prompts.

why: vLLM measures every request there, but its metrics lack lengths, factor sets and clients that disconnected.
what differs: nothing for the client. Each sequence's state keeps a :class:`Track`. Upstream's measurements of an output are
    stored by length band and factor set, and :class:`StepLogger` adds them to our metrics when vLLM records the step. The
    first output after a switch brings prefill statistics (``model_patches/switch/engine/scheduler.py``). A long
    prompt's detokenizer starts from the prompt's end: upstream decodes all of it at the first token, 0.25 s for a million.
limits: with ``--disable-log-stats`` nothing is measured. A realtime session's prompt is as long as its chunks so far.
when it can go: when vLLM labels its metrics by length and counts clients that disconnect.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from ropeswitch.model_patches.switch.config.settings import RESERVE
from ropeswitch.model_patches.switch.placement import EngineLadder, placement_of
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front.bodies.long_prompts import with_prompt_end
from ropeswitch.server.front.context import current
from ropeswitch.server.metrics.instruments import GENERATING, WAITING
from ropeswitch.server.metrics.length_metrics import Finished, LengthMetrics, Step
from ropeswitch.server.metrics.series import BandSet
from ropeswitch.server.metrics.track import Track

# The attribute of a step's statistics, a sequence's state and the output processor that holds our data.
KEPT = "ropeswitch"
# Seconds between two reports of a running sequence's tokens.
REPORT_SECONDS = 1.0
# Named here, because ``super()`` adds 0.2 us to every output.
_update_stats = vllm_adapter.OutputProcessor._update_stats_from_output


class OutputWatch:
    """Measures the sequences of one API server process.

    Args:
        ladder: The engines' ladder.
        metrics: The metrics to add to.
        engine_of: Returns the index of a request's engine by its internal ID; None if it has none.

    Attributes:
        spans: Returns a context in which a sequence's span is made (``traces.py``); None without traces.
    """

    def __init__(self, ladder: EngineLadder, metrics: LengthMetrics, engine_of: Callable[[str], int | None]) -> None:
        self._ladder = ladder
        self._bands = metrics.plan.bands
        self._metrics = metrics
        self._engine_of = engine_of
        self._numbers = count(1)
        self.spans: Callable[[Track], AbstractContextManager[None]] | None = None

    def begin(self, state: Any, request: Any) -> None:
        """Track a new sequence, also in its request's context.

        Args:
            state: Its ``vllm.v1.engine.output_processor.RequestState``.
            request: Its ``vllm.v1.engine.EngineCoreRequest``.
        """
        track = Track(placement_of(request), state)
        track.number = next(self._numbers)
        track.first = track.band_set = self._band_set(track, state.prompt_len)
        setattr(state, KEPT, track)
        self.live(track, WAITING)
        if (context := current.get()) is not None:
            context.add(track, state)

    def ask(self, state: Any, request: Any) -> None:
        """Go by the placement of a session's next chunk from now on."""
        state.ropeswitch.asked = placement_of(request)

    def move(self, track: Track, prompt: int, length: int) -> None:
        """Record the set that a sequence is in from now on.

        Args:
            track: The sequence.
            prompt: Its prompt's length, which grows in a realtime session.
            length: The length at which the engine placed it.
        """
        moved = track.asked.moved(self._ladder, min(length, self._ladder.sets.max_length), prompt)
        # A chunk of a session that reserves less stays where the last one was (model_patches/switch/engine/scheduler.py).
        if moved.index > track.placement.index or track.asked.policy != RESERVE:
            track.placement = moved
        track.band_set = self._band_set(track, prompt)

    def _band_set(self, track: Track, prompt: int) -> BandSet:
        return min(self._bands.index(prompt), len(self._bands.names) - 1), track.placement.index

    def live(self, track: Track, state: str | None) -> None:
        """Count a sequence as live in a state, under its band and set only; None when it has ended."""
        live = None if state is None else (track.band_set, state)
        if live == track.live:
            return
        if track.live is not None:
            self._metrics.add_live(*track.live, -1)
        if live is not None:
            self._metrics.add_live(*live, 1)
        track.live = live

    def end(self, state: Any, outcome: str | None) -> None:
        """Add the unreported outputs of a sequence that ends without a last output; count its outcome once, unless None."""
        track = state.ropeswitch
        self.live(track, None)
        if track.outcome is not None:
            return
        engine = self._engine_of(state.request_id) if track.engine is None else track.engine
        unreported = track.take_unreported()
        if engine is not None:
            self._metrics.add_later(engine, *unreported)
        if outcome is not None:
            track.outcome = outcome
            self._metrics.count_ended(engine, track.band_set, outcome)


class WatchedOutputs(vllm_adapter.OutputProcessor):
    """The output processor of an API server.

    Attributes:
        ropeswitch: Measures every sequence; None with ``--disable-log-stats``.
    """

    ropeswitch: OutputWatch | None = None

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        before = self.request_states.get(request.request_id)
        short = with_prompt_end(request, self.tokenizer) if before is None else request
        super().add_request(short, *args, **kwargs)
        state = self.request_states.get(request.request_id)
        if short is not request:
            # An answer may repeat its prompt.
            state.prompt_token_ids, state.prompt_len = request.prompt_token_ids, len(request.prompt_token_ids)
        if (watch := self.ropeswitch) is not None:
            if before is None:
                watch.begin(state, request)
            elif state is None:
                # The last chunk of a session that had answered all others ends it.
                watch.end(before, None)
            else:
                watch.ask(before, request)

    # Called for every output of every request, so it is kept short.
    def _update_stats_from_output(self, state: Any, output: Any, timestamp: float | None, iteration: Any) -> None:
        watch = self.ropeswitch
        if iteration is None or watch is None or (track := state.ropeswitch).outcome is not None:
            # Nothing is measured, or it was counted as ended with an error.
            super()._update_stats_from_output(state, output, timestamp, iteration)
            return
        stats = state.stats
        before = stats.last_token_ts
        _update_stats(self, state, output, timestamp, iteration)
        tokens = len(output.new_token_ids)
        if not tokens and output.pooling_output is None:
            return
        now, prefill = stats.last_token_ts, output.prefill_stats
        if state.is_prefilling:
            # Repeated for each chunk of a session.
            _report(track, iteration)
            if track.waited is not None:
                watch.move(track, state.prompt_len, state.prompt_len)
            track.first, track.reported = track.band_set, now
            watch.live(track, GENERATING)
            track.waited = stats.first_token_latency
            prompt = prefill.num_prompt_tokens if prefill is not None else 0
            step = _step(iteration)
            step.begun.append(track)
            step.firsts.append((track.band_set, stats.first_token_latency, prompt, tokens))
            return
        if prefill is not None:
            # The engine reports a switch; its statistics lack the last token, whose keys no prefill computes.
            _report(track, iteration)
            watch.move(track, state.prompt_len, prefill.num_prompt_tokens + 1)
            watch.live(track, GENERATING)
        track.gaps.append(now - before)
        track.tokens += tokens
        if prefill is not None:
            track.later.append(track.band_set[1])
            computed, cached = prefill.num_computed_tokens, prefill.num_cached_tokens
            track.recomputed += computed
            _step(iteration).switches.append((track.band_set, now - before, computed, cached))
        if now - track.reported >= REPORT_SECONDS:
            track.reported = now
            _report(track, iteration)

    def _update_stats_from_finished(self, state: Any, finish_reason: Any, iteration: Any) -> None:
        super()._update_stats_from_finished(state, finish_reason, iteration)
        if (watch := self.ropeswitch) is None:
            return
        track = state.ropeswitch
        watch.live(track, None)
        if iteration is None or track.outcome is not None:
            # Nothing is measured, or it was counted as ended with an error.
            return
        _report(track, iteration)
        track.outcome = str(finish_reason)
        times = iteration.finished_requests[-1]
        _step(iteration).finished.append(Finished(track.first, track.band_set, track.outcome, times))

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        outcome, states = _why(), dict(self.request_states)
        # Upstream calls this for the children of a parent, whose states are then counted once.
        aborted: list[str] = super().abort_requests(request_ids, internal)
        if self.ropeswitch is not None:
            for request_id in aborted:
                self.ropeswitch.end(states[request_id], outcome)
        return aborted

    def propagate_error(self, error: Exception) -> None:
        if self.ropeswitch is not None:
            for state in self.request_states.values():
                self.ropeswitch.end(state, "error")
        super().propagate_error(error)

    def do_tracing(self, output: Any, state: Any, iteration: Any) -> None:
        assert self.ropeswitch is not None and self.ropeswitch.spans is not None
        with self.ropeswitch.spans(state.ropeswitch):
            super().do_tracing(output, state, iteration)


class StepLogger(vllm_adapter.AggregateStatLoggerBase):
    """Adds the values of a step to the per-length metrics, as one of vLLM's stat loggers.

    It is appended to the engine client's loggers. The entry point ``vllm.stat_logger_plugins`` would make it before there is
    a ladder, and would measure even with ``--disable-log-stats``.
    """

    def __init__(self, metrics: LengthMetrics) -> None:
        self._metrics = metrics

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if (step := getattr(iteration_stats, KEPT, None)) is not None:
            self._metrics.add_step(step, engine_idx)

    def log_engine_initialized(self) -> None:
        """Log nothing."""


def _report(track: Track, iteration: Any) -> None:
    """Add a sequence's unreported outputs to a step."""
    if track.gaps:
        _step(iteration).later.append(track.take_unreported())


def _step(iteration: Any) -> Step:
    """Return our statistics of a step, which upstream's statistics carry."""
    try:
        step: Step = iteration.ropeswitch
    except AttributeError:
        step = iteration.ropeswitch = Step()
    return step


def _why() -> str:
    """Return an abort's outcome by the exception being handled; ``AsyncLLM.generate`` and ``encode`` abort as they end."""
    error = sys.exception()
    if error is None:
        return "abort"
    return "disconnect" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "error"
