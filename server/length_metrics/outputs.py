"""``vllm.v1.engine.output_processor.OutputProcessor``: watched for metrics, log and traces, on the server's own object.

why: vLLM measures every request there, and its metrics tell neither its length nor its factor set, nor that a client left.
what differs: nothing for the engine or the client. Each sequence's state keeps a :class:`Track`; what upstream has measured
    of an output is noted by length band and factor set, and added to our metrics when upstream's
    ``StatLoggerManager.record`` adds it to its own. A switch is known by the prefill statistics that its first output
    brings (``model_patches/switch/scheduler.py``).
limits: with ``--disable-log-stats`` nothing is measured. A realtime session's prompt is as long as its chunks so far.
when it can go: when vLLM labels its metrics by length and tells of clients that leave.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.context import current
from ropeswitch.server.length_metrics.instruments import GENERATING, WAITING
from ropeswitch.server.length_metrics.metrics import Finished, LengthMetrics, Step
from ropeswitch.server.length_metrics.series import BandSet
from ropeswitch.server.length_metrics.track import Track
from ropeswitch.server.prompt_set import decide

# The attribute under which a sequence's state and a step's statistics keep what is ours.
KEPT = "ropeswitch"
# A running sequence tells its tokens together, when the last time is so many seconds ago.
TELL_SECONDS = 1.0


class OutputWatch:
    """Watches the output processor of one API server process.

    Args:
        ladder: The ladder that the engines run.
        metrics: Where to add what is seen.
        engine_of: The index of the engine that has a request, by its internal id; None where it has none.
    """

    def __init__(self, ladder: FactorLadder, metrics: LengthMetrics, engine_of: Callable[[str], int | None]) -> None:
        self._ladder = ladder
        self._ends = [each.max_length for each in ladder.sets]
        self._bands = metrics.plan.bands
        self._metrics = metrics
        self._engine_of = engine_of

    def watch(self, processor: Any, manager: Any) -> None:
        """Wrap what is called for every request, output and end.

        Args:
            processor: ``OutputProcessor``, which has processed nothing yet.
            manager: ``vllm.v1.metrics.loggers.StatLoggerManager``.
        """
        processor.add_request = self._adding(processor, processor.add_request)
        processor._update_stats_from_output = self._noting(processor._update_stats_from_output)
        processor._update_stats_from_finished = self._ending(processor._update_stats_from_finished)
        processor.abort_requests = self._aborting(processor, processor.abort_requests)
        processor.propagate_error = self._failing(processor, processor.propagate_error)
        manager.record = self._recording(manager.record)

    def place(self, track: Track, prompt: int, length: int) -> BandSet:
        """The band and set of a sequence of ``length`` tokens, of which ``prompt`` are its prompt."""
        if length > track.until:
            grown = track.until >= 0
            index = track.decision.index_at(self._ladder, length) if grown else track.decision.index
            last = track.decision.forced is not None or index == len(self._ends) - 1
            track.until = sys.maxsize if last else self._ends[index]
            track.band_set = (min(self._bands.index(prompt), len(self._bands.names) - 1), index)
        return track.band_set

    def _adding(self, processor: Any, upstream: Callable[..., None]) -> Callable[..., None]:
        def add_request(request: Any, *args: Any, **kwargs: Any) -> None:
            before = processor.request_states.get(request.request_id)
            upstream(request, *args, **kwargs)
            if (context := current.get()) is not None:
                context.entered = True
            state = processor.request_states.get(request.request_id)
            if state is None:
                # The last chunk of a session that had answered all others ends it.
                self._live(before.ropeswitch, None)
                self._add_untold(before)
            elif before is None:
                decision = context.decided.get(state.external_req_id) if context is not None else None
                if decision is None:
                    # A realtime session, whose prompt grows, or a prompt of the server's own making.
                    length = min(state.prompt_len, self._ladder.max_length)
                    decision = decide(self._ladder, length, request.sampling_params)
                track = Track(decision, state)
                track.first = self.place(track, state.prompt_len, state.prompt_len)
                setattr(state, KEPT, track)
                self._live(track, WAITING)
                if context is not None:
                    context.add(track, state)

        return add_request

    def _noting(self, upstream: Callable[..., None]) -> Callable[..., None]:
        # Called for every output of every request, so it is kept short.
        def update_stats_from_output(state: Any, output: Any, timestamp: float | None, iteration: Any) -> None:
            stats, track = state.stats, state.ropeswitch
            if iteration is None or track.outcome is not None:
                # Nothing is measured, or it was counted as ended with an error.
                upstream(state, output, timestamp, iteration)
                return
            before = stats.last_token_ts
            # What the output was computed from: its set is the one that this length has.
            length = state.prompt_len + stats.num_generation_tokens
            upstream(state, output, timestamp, iteration)
            tokens = len(output.new_token_ids)
            if not tokens and output.pooling_output is None:
                return
            if length > track.until:
                _tell(track, iteration)
                self.place(track, state.prompt_len, length)
                self._live(track, GENERATING)
            now, prefill = stats.last_token_ts, output.prefill_stats
            if state.is_prefilling:
                # Again for each chunk of a session.
                _tell(track, iteration)
                track.first, track.told = track.band_set, now
                self._live(track, GENERATING)
                track.waited = stats.first_token_latency
                prompt = prefill.num_prompt_tokens if prefill is not None else 0
                step = _step(iteration)
                step.begun.append(track)
                step.firsts.append((track.band_set, stats.first_token_latency, prompt, tokens))
                return
            track.gaps.append(now - before)
            track.tokens += tokens
            if prefill is not None:
                track.later.append(track.band_set[1])
                computed, cached = prefill.num_computed_tokens, prefill.num_cached_tokens
                track.recomputed += computed
                _step(iteration).switches.append((track.band_set, now - before, computed, cached))
            if now - track.told >= TELL_SECONDS:
                track.told = now
                _tell(track, iteration)

        return update_stats_from_output

    def _ending(self, upstream: Callable[..., None]) -> Callable[..., None]:
        def update_stats_from_finished(state: Any, finish_reason: Any, iteration: Any) -> None:
            upstream(state, finish_reason, iteration)
            track = state.ropeswitch
            self._live(track, None)
            if iteration is None:
                return
            _tell(track, iteration)
            track.outcome = str(finish_reason)
            _step(iteration).finished.append(
                Finished(track.first, track.band_set, track.outcome, iteration.finished_requests[-1])
            )

        return update_stats_from_finished

    def _recording(self, upstream: Callable[..., None]) -> Callable[..., None]:
        def record(
            scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int | None = None
        ) -> None:
            upstream(scheduler_stats, iteration_stats, mm_cache_stats=mm_cache_stats, engine_idx=engine_idx)
            if (step := getattr(iteration_stats, KEPT, None)) is not None:
                self._metrics.add_step(step, engine_idx or 0)

        return record

    def _aborting(self, processor: Any, upstream: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def abort_requests(request_ids: Iterable[str], internal: bool) -> list[str]:
            outcome = _why()
            states = dict(processor.request_states)
            # Upstream calls this for the children of a parent, whose states are then counted once.
            aborted = upstream(request_ids, internal)
            for request_id in aborted:
                self._count(states[request_id], outcome)
            return aborted

        return abort_requests

    def _failing(self, processor: Any, upstream: Callable[[Exception], None]) -> Callable[[Exception], None]:
        def propagate_error(error: Exception) -> None:
            for state in processor.request_states.values():
                self._count(state, "error")
            upstream(error)

        return propagate_error

    def _live(self, track: Track, state: str | None) -> None:
        """Count a sequence as live in a state, in its band and set and nowhere else; None when it has ended."""
        live = None if state is None else (track.band_set, state)
        if live == track.live:
            return
        if track.live is not None:
            self._metrics.add_live(*track.live, -1)
        if live is not None:
            self._metrics.add_live(*live, 1)
        track.live = live

    def _count(self, state: Any, outcome: str) -> None:
        track = state.ropeswitch
        self._live(track, None)
        if track.outcome is None:
            track.outcome = outcome
            self._metrics.count_ended(self._add_untold(state), track.band_set, outcome)

    def _add_untold(self, state: Any) -> int | None:
        """Add what a sequence that ends has not told, and return its engine."""
        track = state.ropeswitch
        engine = self._engine_of(state.request_id) if track.engine is None else track.engine
        untold = track.take_untold()
        if engine is not None:
            self._metrics.add_later(engine, *untold)
        return engine


def _tell(track: Track, iteration: Any) -> None:
    """Have what a sequence has made, and not told yet, added with a step."""
    if track.gaps:
        _step(iteration).later.append(track.take_untold())


def _step(iteration: Any) -> Step:
    """What is ours of upstream's statistics of a step."""
    try:
        step: Step = iteration.ropeswitch
    except AttributeError:
        step = iteration.ropeswitch = Step()
    return step


def _why() -> str:
    """What is being handled where a request is aborted: ``AsyncLLM.generate`` and ``encode`` abort theirs as they end."""
    error = sys.exception()
    if error is None:
        return "abort"
    return "disconnect" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "error"
