"""``vllm.v1.engine.output_processor.OutputProcessor``: subclassed for metrics, access log and long prompts.

why: vLLM measures every request there, but its metrics lack lengths, factor sets and clients that disconnected.
what differs: nothing for the client. Each sequence's state keeps a :class:`Track`. Upstream's measurements of an output are
    added to our metrics by length band and factor set, those of later outputs once a second. The first output after a
    switch brings prefill statistics (``model_patches/switch/engine/scheduler.py``). They have no field for the set, so it is
    derived from the length in them, as the engine did. A long prompt's detokenizer starts from the prompt's end: upstream
    decodes all of it at the first token, 0.25 s for a million.
limits: with ``--disable-log-stats`` nothing is measured. A realtime session's prompt is as long as its chunks so far.
when it can go: when vLLM labels its metrics by length and counts clients that disconnect.
"""

import asyncio
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

from ropeswitch.model_patches.switch.config.settings import RESERVE
from ropeswitch.model_patches.switch.placement import EngineLadder, Placement, placement_of
from ropeswitch.server.app.paced_outputs import PacedOutputs
from ropeswitch.server.front import refusal
from ropeswitch.server.front.bodies.long_prompts import with_prompt_end
from ropeswitch.server.front.context import current
from ropeswitch.server.metrics.instruments import GENERATING, WAITING
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.series import BandSet
from ropeswitch.server.metrics.track import Track

# Seconds between two reports of a running sequence's tokens.
REPORT_SECONDS = 1.0


class OutputWatch:
    """Measures the sequences of one API server process.

    ``engine_of`` returns the index of a request's engine by its internal ID, or None.
    """

    def __init__(self, ladder: EngineLadder, metrics: LengthMetrics, engine_of: Callable[[str], int | None]) -> None:
        self.metrics = metrics
        self._ladder = ladder
        self._engine_of = engine_of
        self._numbers = count(1)

    def begin(self, state: Any, request: Any) -> None:
        """Track a new sequence, also in its request's context: a ``RequestState`` and an ``EngineCoreRequest`` of vLLM."""
        placement = placement_of(request)
        state.ropeswitch = track = Track(
            placement, state, next(self._numbers), self._band_set(placement, state.prompt_len)
        )
        self.live(track, WAITING)
        track.engine = self._engine_of(request.request_id)
        if track.engine is None:
            # Upstream chooses one before this task waits next, and forgets it before the last output arrives.
            find = partial(self._engine_of, request.request_id)
            asyncio.get_running_loop().call_soon(lambda: setattr(track, "engine", find()))
        if (context := current.get()) is not None:
            context.entered.sequences.append(track)

    def _band_set(self, placement: Placement, prompt: int) -> BandSet:
        ends = self.metrics.plan.bands.ends
        return bisect_left(ends, min(prompt, ends[-1])), placement.index

    def _move(self, track: Track, prompt: int, length: int) -> None:
        """Record the set that a sequence of a prompt's length is in, given the length at which the engine placed it."""
        moved = track.asked.moved(self._ladder, min(length, self._ladder.sets.max_length), prompt)
        # A chunk of a session that reserves less stays where the last one was (model_patches/switch/engine/scheduler.py).
        if moved.index > track.placement.index or track.asked.policy != RESERVE:
            track.placement = moved
        track.band_set = self._band_set(track.placement, prompt)

    def live(self, track: Track, state: str | None) -> None:
        """Count a sequence as live in a state, under its band and set only; None when it has ended."""
        live = None if state is None else (track.band_set, state)
        if live == track.live:
            return
        if track.live is not None:
            self.metrics.add_live(*track.live, -1)
        if live is not None:
            self.metrics.add_live(*live, 1)
        track.live = live

    def first(self, track: Track, state: Any, prefill: Any, tokens: int) -> None:
        """Add a sequence's first output, or the first after a chunk of a session."""
        self.report(track)
        if track.waited is not None:
            self._move(track, state.prompt_len, state.prompt_len)
        track.first, track.reported = track.band_set, state.stats.last_token_ts
        self.live(track, GENERATING)
        track.waited = seconds = state.stats.first_token_latency
        prompt = 0 if prefill is None else prefill.num_prompt_tokens
        self.metrics.add_first(track.engine, track.band_set, seconds, prompt, tokens, track.placement.chosen_by)

    def switch(self, track: Track, state: Any, prefill: Any, stall: float) -> None:
        """Add a switch; its statistics lack the last token, whose keys no prefill computes."""
        self.report(track)
        self._move(track, state.prompt_len, prefill.num_prompt_tokens + 1)
        self.live(track, GENERATING)
        track.later.append(track.band_set[1])
        track.recomputed += prefill.num_computed_tokens
        self.metrics.add_switch(
            track.engine, track.band_set, stall, prefill.num_computed_tokens, prefill.num_cached_tokens
        )

    def report(self, track: Track) -> None:
        """Add a sequence's unreported outputs."""
        if track.gaps:
            self.metrics.add_later(track.engine, track.band_set, track.gaps, track.tokens)
            track.gaps, track.tokens = [], 0

    def end(self, track: Track, outcome: str | None, times: Any = None) -> None:
        """Add a sequence's unreported outputs as it ends; count its outcome once, unless None.

        ``times`` is vLLM's ``FinishedRequestStats``; None without a last output.
        """
        self.live(track, None)
        if track.outcome is not None:
            return
        self.report(track)
        if outcome is not None:
            track.outcome = outcome
            self.metrics.add_ended(track.engine, track.first, track.band_set, outcome, times)


class WatchedOutputs(PacedOutputs):
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
                watch.end(before.ropeswitch, None)
            else:
                before.ropeswitch.asked = placement_of(request)

    def process_outputs(self, outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        if self.ropeswitch is not None:
            for each in outputs:
                # Only 0.33.0 has it: of a request rejected on arrival, which upstream ends without statistics.
                if getattr(each, "error", None) is not None and (state := self.request_states.get(each.request_id)):
                    self.ropeswitch.end(state.ropeswitch, "error")
        return super().process_outputs(outputs, *args, **kwargs)

    # Called for every output of every request, so it is kept short.
    def _update_stats_from_output(self, state: Any, output: Any, timestamp: float | None, iteration: Any) -> None:
        watch, stats = self.ropeswitch, state.stats
        before = 0.0 if stats is None else stats.last_token_ts
        super()._update_stats_from_output(state, output, timestamp, iteration)
        tokens = len(output.new_token_ids)
        # A sequence that was counted as ended with an error may still get outputs.
        if iteration is None or watch is None or (track := state.ropeswitch).outcome is not None:
            return
        if not tokens and output.pooling_output is None:
            return
        now = stats.last_token_ts
        if state.is_prefilling:
            watch.first(track, state, output.prefill_stats, tokens)
            return
        if output.prefill_stats is not None:
            watch.switch(track, state, output.prefill_stats, now - before)
        track.gaps.append(now - before)
        track.tokens += tokens
        if now - track.reported >= REPORT_SECONDS:
            track.reported = now
            watch.report(track)

    def _update_stats_from_finished(self, state: Any, finish_reason: Any, iteration: Any) -> None:
        super()._update_stats_from_finished(state, finish_reason, iteration)
        if self.ropeswitch is not None:
            outcome, times = (str(finish_reason), iteration.finished_requests[-1]) if iteration else (None, None)
            self.ropeswitch.end(state.ropeswitch, outcome, times)

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        outcome, states = _why(), dict(self.request_states)
        # Upstream calls this for the children of a parent, whose states are then counted once.
        aborted: list[str] = super().abort_requests(request_ids, internal)
        if self.ropeswitch is not None:
            for request_id in aborted:
                self.ropeswitch.end(states[request_id].ropeswitch, outcome)
        return aborted

    def propagate_error(self, error: Exception) -> None:
        if self.ropeswitch is not None:
            for state in self.request_states.values():
                self.ropeswitch.end(state.ropeswitch, "error")
        super().propagate_error(error)


def _why() -> str:
    """Return an abort's outcome by the exception being handled; ``AsyncLLM.generate`` and ``encode`` abort as they end."""
    error = sys.exception()
    if error is None:
        return "abort"
    return "disconnect" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "error"


def start(engine_client: Any, ladder: EngineLadder) -> LengthMetrics | None:
    """Measure every request of a process from now on, and count those that its front refuses.

    Args:
        engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``, which has had no request yet.
        ladder: Its engines' ladder.

    Returns:
        The metrics; None with ``--disable-log-stats``, where vLLM measures nothing.
    """
    if engine_client.logger_manager is None:
        return None
    metrics = LengthMetrics(ladder.sets, engine_client.model_config.served_model_name)
    engine_client.output_processor.ropeswitch = OutputWatch(ladder, metrics, engine_finder(engine_client.engine_core))
    refusal.listeners.append(metrics.count_rejection)
    return metrics


def engine_finder(client: Any) -> Callable[[str], int | None]:
    """Return a function from a request's internal ID to the index of its engine, or to None if none is chosen yet.

    Args:
        client: ``vllm.v1.engine.core_client.AsyncMPClient``, which knows one engine, or ``DPLBAsyncMPClient``, which has
            chosen one of several.
    """
    indexes: dict[bytes, int] = dict(zip(client.core_engines, client.engine_ranks_managed, strict=True))
    if len(indexes) == 1:
        [only] = indexes.values()
        return lambda _: only

    def find(request_id: str) -> int | None:
        engine = client.reqs_in_flight.get(request_id)
        return None if engine is None else indexes[engine]

    return find
