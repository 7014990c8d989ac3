"""``vllm.v1.engine.output_processor.OutputProcessor``: spreads work for log-probabilities over turns of the event loop.

why: vLLM detokenizes every alternative of every token, 20 in 0.3 ms, before it lets another task run. When the engine is
    faster, its output handler never yields, and a stream that falls behind gets all its tokens in one event. A stream's
    log-probabilities stay in memory until its end.
what differs: nothing for the client. A turn processes at most :data:`SLICE` log-probabilities. Outputs beyond them, and
    those of a stream whose client has not read the last ones, wait as the engine sent them, in a tenth of the memory. A
    stream with more than :data:`BEHIND` waiting ends with an error, as does an answer of more than ``most``.
limits: an answer that is not streamed is built in one turn. A slice that waited counts as a step in
    ``vllm:iteration_tokens_total``.
when it can go: when vLLM processes log-probabilities outside the event loop.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ropeswitch.server.app import vllm_adapter

logger = logging.getLogger(__name__)

# Log-probabilities, tokens times alternatives, that a turn of the event loop processes (4 ms), unless one token has more.
SLICE = 256
# Maximum waiting for a stream's client: 6,241 tokens with 20 alternatives, 4 MB.
BEHIND = 1 << 17
# A stream may have this many times the log-probabilities of an answer in one go.
STREAMED = 16
# Seconds between looks for clients that have read, and of a turn after which others get as much time.
PAUSE, LONG_TURN = 0.01, 0.05


@dataclass
class _Waiting:
    """A sequence's waiting outputs, each with the time and the weights' version of its step."""

    outputs: deque[tuple[Any, float | None, str | None]] = field(default_factory=deque)
    size: int = 0  # log-probabilities


class PacedOutputs(vllm_adapter.OutputProcessor):
    """See the module.

    Attributes:
        client: Engine client whose outputs it processes; without it, none wait.
        most: Maximum log-probabilities of an answer in one go; a stream may have :data:`STREAMED` times as many.
    """

    client: Any = None
    most = 1 << 16

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: dict[str, _Waiting] = {}
        self._made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # log-probabilities of each answer
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
                self._wait(each, timestamp, weight_version)
            else:
                now.append(each)
        return super().process_outputs(now, timestamp, iteration, weight_version)

    def _fits(self, output: Any) -> bool:
        """Whether this turn can process an output that has log-probabilities."""
        if (state := self.request_states.get(output.request_id)) is None or self.client is None:
            return True
        if output.new_logprobs is not None:
            self._made[state.queue] = self._made.get(state.queue, 0) + output.new_logprobs.logprobs.size
        _forget_sent(state)
        size = self._size(state, output)
        if output.request_id in self._waiting or size > self._left or not _is_read(state) or self._problem(state):
            return False
        if self._left == SLICE:
            asyncio.get_running_loop().call_soon(self._renew)
        self._left -= size
        return True

    def _renew(self) -> None:
        self._left = SLICE

    def _size(self, state: Any, output: Any) -> int:
        """Return the log-probabilities to process for an output; a last one has the whole answer to build."""
        if output.finished and not state.queue.aggregate:
            return self._made.get(state.queue, 0)
        sampled, prompt = output.new_logprobs, output.new_prompt_logprobs_tensors
        return (0 if sampled is None else sampled.logprobs.size) + (0 if prompt is None else prompt.logprobs.numel())

    def _wait(self, output: Any, timestamp: float | None, weight_version: str | None) -> None:
        waiting = self._waiting.setdefault(output.request_id, _Waiting())
        if (new := output.new_logprobs) is not None:
            # The arrays are views of a message that has the outputs of every request.
            output.new_logprobs = type(new)(*(array.copy() for array in new[:3]))
            waiting.size += new.logprobs.size
        waiting.outputs.append((output, timestamp, weight_version))
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def _problem(self, state: Any, waiting: _Waiting | None = None) -> str | None:
        """Return why an answer must end; None for one that may go on."""
        most = self.most * (STREAMED if state.queue.aggregate else 1)
        if (made := self._made.get(state.queue, 0)) > most:
            return f"The answer has {made} log-probabilities, more than this server's limit of {most}. Ask for fewer."
        if waiting is not None and waiting.size > BEHIND and state.queue.aggregate:
            return (
                f"{waiting.size} log-probabilities wait for the client, more than the limit of {BEHIND}. Read faster."
            )
        return None

    async def _work(self) -> None:
        """Process waiting outputs, in each turn a slice of one sequence, until none are left."""
        while self._waiting:
            idle = True
            for request_id, waiting in list(self._waiting.items()):
                began, state = time.perf_counter(), self.request_states.get(request_id)
                if state is None:
                    del self._waiting[request_id]  # aborted
                elif problem := self._problem(state, waiting):
                    await self._end(state, vllm_adapter.validation_error(problem, "logprobs"))
                elif _is_read(state):
                    idle = False
                    try:
                        await self._process(state, waiting)
                    except Exception as error:
                        logger.exception("An output with log-probabilities failed.")
                        await self._end(state, error)
                    await asyncio.sleep(0)
                    # The client's task has used what it was given. Others get as much time as that took.
                    if (seconds := time.perf_counter() - began) > LONG_TURN:
                        await asyncio.sleep(seconds)
            if idle:
                await asyncio.sleep(PAUSE)
        self._task = None

    async def _process(self, state: Any, waiting: _Waiting) -> None:
        _forget_sent(state)
        iteration, left, stopped = vllm_adapter.IterationStats() if self.log_stats else None, SLICE, []
        while waiting.outputs and left > 0:
            output, timestamp, weight_version = waiting.outputs[0]
            prompt = output.new_prompt_logprobs_tensors
            if prompt is not None and prompt.logprobs.numel() > left:
                rows = max(1, left // prompt.logprobs.shape[1])
                part, rest = (
                    type(prompt)(*(each[rows_of] for each in prompt[:3]))
                    for rows_of in (slice(rows), slice(rows, None))
                )
                state.logprobs_processor.update_from_output(
                    type(output)(state.request_id, [], new_prompt_logprobs_tensors=part)
                )
                output.new_prompt_logprobs_tensors = rest
                break
            left -= self._size(state, output)
            waiting.outputs.popleft()
            if output.new_logprobs is not None:
                waiting.size -= output.new_logprobs.logprobs.size
            stopped += super().process_outputs([output], timestamp, iteration, weight_version).reqs_to_abort
        if not waiting.outputs:
            self._waiting.pop(state.request_id, None)
        if iteration is not None and self.client.logger_manager is not None:
            self.client.logger_manager.record(None, iteration, engine_idx=state.ropeswitch.engine)
        if stopped:
            await self.client.engine_core.abort_requests_async(stopped)

    async def _end(self, state: Any, error: Exception) -> None:
        """End a request with an error; its client gets it once it has read the last output."""
        self._waiting.pop(state.request_id, None)
        await self.client.abort((state.parent_req or state).request_id, internal=True)
        state.queue.put(vllm_adapter.InputStreamError(error))


def _is_read(state: Any) -> bool:
    """Whether a sequence's client has read its last output, or needs only the whole answer."""
    return state.queue.output is None or not state.queue.aggregate


def _forget_sent(state: Any) -> None:
    """Drop a stream's log-probabilities that have been sent, but those from which upstream continues half a character."""
    kept, least = state.logprobs_processor.logprobs, state.stream_interval + 4
    if state.queue.aggregate and kept is not None and len(kept) > 2 * least:
        del kept[:-least]
