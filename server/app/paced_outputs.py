"""``vllm.v1.engine.output_processor.OutputProcessor``: processes log-probabilities in slices, between other tasks.

why: vLLM takes 0.3 ms for a token with 20 alternatives, and lets no other task run while its engine is ahead. A stream
    that falls behind gets all its tokens in one event. Its log-probabilities stay in memory until its end.
what differs: nothing for the client. Outputs beyond a turn's :data:`SLICE`, and those of a stream whose client has not
    read the last ones, wait as the engine sent them, in a tenth of the memory. A stream with more than :data:`BEHIND`
    waiting ends with an error, as does an answer with too many log-probabilities.
limits: an answer that is not streamed is built in one turn. ``vllm:iteration_tokens_total`` counts a late slice as a step.
when it can go: when vLLM processes log-probabilities outside the event loop.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

from ropeswitch.server.app import vllm_adapter

logger = logging.getLogger(__name__)

# Log-probabilities (tokens times alternatives) to process in a turn of the event loop, 4 ms, unless one output has more.
SLICE = 256
# Maximum outputs, of a token each, that wait for a stream's client: 3 MB with 20 alternatives.
BEHIND = 1 << 12
# A stream may have this many times the log-probabilities of an answer that is not streamed.
STREAMED = 16
# Seconds between looks for clients that have read, and of a turn after which others get as much time.
PAUSE, LONG_TURN = 0.01, 0.05


class PacedOutputs(vllm_adapter.OutputProcessor):
    """See the module. ``client`` is the engine client, ``most`` the limit for an answer that is not streamed."""

    client: Any
    most = 1 << 16

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By sequence: its outputs with the time and the weights' version of their step.
        self._waiting: dict[str, deque[tuple[Any, float | None, str | None]]] = {}
        self._made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # log-probabilities, by an answer's queue
        self._left = SLICE
        self._task: asyncio.Task[None] | None = None

    def process_outputs(
        self,
        outputs: list[Any],
        timestamp: float | None = None,
        iteration: Any = None,
        weight_version: str | None = None,
    ) -> Any:
        now = []
        # Every output of every request passes here, so the loop is kept short.
        for each in outputs:
            heavy = each.new_logprobs is not None or each.new_prompt_logprobs_tensors is not None
            if (heavy and not self._fits(each)) or each.request_id in self._waiting:
                if (new := each.new_logprobs) is not None:
                    # The arrays are views of a message that has the outputs of every request.
                    each.new_logprobs = type(new)(*(array.copy() for array in new[:3]))
                self._waiting.setdefault(each.request_id, deque()).append((each, timestamp, weight_version))
                self._task = self._task or asyncio.create_task(self._work())
            else:
                now.append(each)
        return super().process_outputs(now, timestamp, iteration, weight_version)

    def _fits(self, output: Any) -> bool:
        """Whether this turn can process an output with log-probabilities."""
        if (state := self.request_states.get(output.request_id)) is None:
            return True
        if output.new_logprobs is not None:
            self._made[state.queue] = self._made.get(state.queue, 0) + output.new_logprobs.logprobs.size
        size = self._size(state, output)
        if output.request_id in self._waiting or size > self._left or not _is_read(state) or self._problem(state):
            return False
        if self._left == SLICE:
            asyncio.get_running_loop().call_soon(setattr, self, "_left", SLICE)
        self._left -= size
        _forget_sent(state)
        return True

    def _size(self, state: Any, output: Any) -> int:
        """Return the log-probabilities to process for an output; the last one of an answer has all of it to build."""
        sampled, prompt = output.new_logprobs, output.new_prompt_logprobs_tensors
        size = 0 if prompt is None else prompt.logprobs.numel()
        if output.finished and not state.queue.aggregate:
            return size + self._made.get(state.queue, 0)
        return size + (0 if sampled is None else sampled.logprobs.size)

    def _problem(self, state: Any) -> str | None:
        """Return why a request must end, or None."""
        most = self.most * (STREAMED if state.queue.aggregate else 1)
        if (made := self._made.get(state.queue, 0)) > most:
            return f"The answer has {made} log-probabilities, more than this server's limit of {most}. Ask for fewer."
        if state.queue.aggregate and len(self._waiting.get(state.request_id, ())) > BEHIND:
            return f"More than {BEHIND} tokens with log-probabilities wait for the client, the limit. Read faster."
        return None

    async def _work(self) -> None:
        """Process waiting outputs, in each turn a slice of one sequence, until none are left."""
        while self._waiting:
            idle = True
            for request_id in list(self._waiting):
                began, state = time.perf_counter(), self.request_states.get(request_id)
                if state is None:
                    del self._waiting[request_id]  # aborted
                elif problem := self._problem(state):
                    await self._end(state, vllm_adapter.validation_error(problem, "logprobs"))
                elif _is_read(state):
                    idle = False
                    try:
                        await self._process(state, self._waiting[request_id])
                    except Exception as error:
                        logger.exception("An output with log-probabilities failed.")
                        await self._end(state, error)
                    await asyncio.sleep(0)
                    # The client's task has used what it got. Others get as much time as that took.
                    if (seconds := time.perf_counter() - began) > LONG_TURN:
                        await asyncio.sleep(seconds)
            if idle:
                await asyncio.sleep(PAUSE)
        self._task = None

    async def _process(self, state: Any, waiting: deque[Any]) -> None:
        _forget_sent(state)
        iteration, left, stopped = vllm_adapter.IterationStats() if self.log_stats else None, SLICE, []
        while waiting and left > 0:
            output, timestamp, weight_version = waiting[0]
            prompt = output.new_prompt_logprobs_tensors
            if prompt is not None and prompt.logprobs.numel() > left:
                rows = max(1, left // prompt.logprobs.shape[1])
                first = type(output)(
                    state.request_id,
                    [],
                    new_prompt_logprobs_tensors=type(prompt)(*(each[:rows] for each in prompt[:3])),
                )
                state.logprobs_processor.update_from_output(first)
                output.new_prompt_logprobs_tensors = type(prompt)(*(each[rows:] for each in prompt[:3]))
                break
            left -= self._size(state, output)
            waiting.popleft()
            stopped += super().process_outputs([output], timestamp, iteration, weight_version).reqs_to_abort
        if not waiting:
            del self._waiting[state.request_id]
        if iteration is not None:
            self.client.logger_manager.record(None, iteration, engine_idx=state.ropeswitch.engine)
        if stopped:
            await self.client.engine_core.abort_requests_async(stopped)

    async def _end(self, state: Any, error: Exception) -> None:
        """End a request; its client gets the error after what it has not read."""
        self._waiting.pop(state.request_id, None)
        # First, so that the client never sees the output with which upstream ends an abort.
        state.queue.put(vllm_adapter.InputStreamError(error))
        await self.client.abort((state.parent_req or state).request_id, internal=True)


def _is_read(state: Any) -> bool:
    """Whether a stream's last output was read; an answer that is not streamed waits for its last output."""
    return state.queue.output is None or not state.queue.aggregate


def _forget_sent(state: Any) -> None:
    """Drop a stream's log-probabilities that were sent, except those that upstream still reads."""
    kept, least = state.logprobs_processor.logprobs, state.stream_interval + 4
    # A client may ask for upstream's flat form, of which nothing can be deleted.
    if state.queue.aggregate and isinstance(kept, list) and len(kept) > 2 * least:
        del kept[:-least]
