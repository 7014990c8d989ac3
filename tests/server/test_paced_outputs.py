"""Log-probabilities are processed in slices between other tasks, and only so many wait for a client."""

import asyncio
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.logprobs import FlatLogprobs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import InputStreamError
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from ropeswitch.server.app import paced_outputs
from ropeswitch.server.app.paced_outputs import SLICE, PacedOutputs
from tests.server.placing import engine_request

pytestmark = pytest.mark.anyio
WIDTH = 21  # a token's log-probabilities
STREAM, WHOLE = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY


class Server:
    """An output processor with an engine client that only ends requests."""

    def __init__(self) -> None:
        self.processor = PacedOutputs(None, log_stats=True)
        self.queues: dict[str, RequestOutputCollector] = {}
        self.recorded: list[IterationStats] = []
        self.aborted: list[str] = []
        self.processor.client = SimpleNamespace(
            abort=self.abort, logger_manager=SimpleNamespace(record=self.record), engine_core=None
        )

    async def abort(self, request_id: str, internal: bool) -> None:
        self.aborted += self.processor.abort_requests([request_id], internal)
        # Ending a request takes the engine a while, in which its client runs; upstream ends it with an output.
        await asyncio.sleep(0.05)

    def record(self, _: None, iteration: IterationStats, engine_idx: int) -> None:
        self.recorded.append(iteration)

    def add(self, name: str, kind: RequestOutputKind, prompt: int = 1, parent: ParentRequest | None = None) -> None:
        queue = self.queues[name] = RequestOutputCollector(kind, name)
        self.processor.add_request(request(name, kind, prompt), None, parent, 0, queue)
        self.processor.request_states[name].ropeswitch = SimpleNamespace(engine=0)

    def step(self, *outputs: EngineCoreOutput) -> None:
        self.processor.process_outputs(list(outputs), time.monotonic(), IterationStats())

    async def fall_behind(self, name: str, tokens: int) -> None:
        """A stream with more outputs than its client reads."""
        self.add(name, STREAM)
        for token in range(tokens):
            self.step(output(name, token))
            await asyncio.sleep(0)

    async def read(self, name: str) -> Any:
        """The parts of an answer until it is whole."""
        parts: list[Any] = []
        while not parts or not parts[-1].finished:
            parts.append(await asyncio.wait_for(self.queues[name].get(), 20))
        return parts


def request(name: str, kind: RequestOutputKind, prompt: int = 1) -> EngineCoreRequest:
    """A request with log-probabilities of its answer, and of a prompt of more than one token."""
    wanted = WIDTH - 1 if prompt > 1 else None
    params = SamplingParams(
        max_tokens=99, detokenize=False, logprobs=WIDTH - 1, prompt_logprobs=wanted, output_kind=kind
    )
    return engine_request(name, prompt, params)


def tokens_of(parts: Any) -> list[int]:
    return [token for part in parts for token in part.outputs[0].token_ids]


def output(name: str, token: int, reason: FinishReason | None = None, **more: Any) -> EngineCoreOutput:
    ids = np.arange(token, token + WIDTH).reshape(1, WIDTH)
    new = LogprobsLists(ids, -ids.astype(np.float32), np.array([1]))
    return EngineCoreOutput(name, [token], new_logprobs=new, finish_reason=reason, **more)


def before_processing(monkeypatch: pytest.MonkeyPatch, call: Callable[[EngineCoreOutput], None]) -> None:
    """Have ``call`` see every output whose log-probabilities are processed."""
    update = LogprobsProcessor.update_from_output

    def seen(self: LogprobsProcessor, each: EngineCoreOutput) -> None:
        call(each)
        update(self, each)

    monkeypatch.setattr(LogprobsProcessor, "update_from_output", seen)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize("kind", [STREAM, WHOLE])
async def test_other_tasks_run_between_slices(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: RequestOutputKind
) -> None:
    """An engine that is far ahead: 40 answers of 30 tokens are there at once. All arrive whole, and are counted."""
    processed, tokens, names = [0], 30, [str(number) for number in range(40)]

    def count(each: EngineCoreOutput) -> None:
        processed[-1] += WIDTH

    async def other() -> None:
        while True:
            await asyncio.sleep(0)
            processed.append(0)

    before_processing(monkeypatch, count)
    for name in names:
        server.add(name, kind)
    readers = [asyncio.create_task(server.read(name)) for name in names]
    beside = asyncio.create_task(other())
    for token in range(tokens):
        server.step(*(output(name, token, FinishReason.LENGTH if token == tokens - 1 else None) for name in names))
    for parts in await asyncio.gather(*readers):
        first = [next(iter(each)) for part in parts for each in part.outputs[0].logprobs]
        assert tokens_of(parts) == first == list(range(tokens))
    beside.cancel()
    # Of the first step, one slice fits into its turn.
    counted_late = sum(each.num_generation_tokens for each in server.recorded)
    assert counted_late == tokens * len(names) - SLICE // WIDTH
    assert not server.processor.request_states and not server.processor._waiting
    assert sum(processed) == WIDTH * tokens * len(names)
    # A turn may have a slice of new outputs, and one of those that waited.
    assert max(processed) < 2 * (SLICE + WIDTH)


async def test_a_stream_that_is_not_read_is_ended_and_its_client_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced_outputs, "BEHIND", 50)
    await server.fall_behind("slow", 60)
    while not server.aborted:
        await asyncio.sleep(0.01)
    server.step(output("slow", 60))
    assert server.aborted == ["slow"] and not server.processor._waiting
    with pytest.raises(InputStreamError) as error:
        await server.queues["slow"].get()
    assert isinstance(error.value.cause, VLLMValidationError) and "More than 50 tokens" in str(error.value)


async def test_a_stream_that_is_read_again_continues_where_it_was(server: Server) -> None:
    await server.fall_behind("slow", 60)
    # It has no log-probabilities, and comes after those that wait nonetheless.
    server.step(EngineCoreOutput("slow", [], finish_reason=FinishReason.LENGTH))
    # One slice at most is turned into objects before it is read.
    assert sum(len(each.token_ids) for each in server.queues["slow"].output.outputs) <= SLICE // WIDTH + 1
    assert tokens_of(await server.read("slow")) == list(range(60))


async def test_an_answer_with_too_many_is_refused_not_built_nor_taken_for_a_whole_one(server: Server) -> None:
    """The other answer to its prompt ends with it."""
    server.processor.most = 10 * WIDTH
    parent = ParentRequest(request("parent", WHOLE))
    whole, sibling = (parent.get_child_info(index)[0] for index in range(2))
    for name, kind in ((whole, WHOLE), (sibling, WHOLE), ("stream", STREAM)):
        server.add(name, kind, parent=None if kind is STREAM else parent)
    stream, refused = (asyncio.create_task(server.read(name)) for name in ("stream", whole))
    for token in range(11):
        server.step(output(whole, token), output("stream", token, FinishReason.LENGTH if token == 10 else None))
        await asyncio.sleep(0)
    await stream
    limit = f"{11 * WIDTH} log-probabilities, more than .* limit of {10 * WIDTH}"
    with pytest.raises(InputStreamError, match=limit):
        await refused
    assert {*server.aborted} == {whole, sibling}


async def test_answers_that_end_together_are_not_built_in_one_turn(server: Server) -> None:
    for name in ("a", "b", "c"):
        server.add(name, WHOLE)
    for token in range(20):
        server.step(*(output(name, token, FinishReason.LENGTH if token == 19 else None) for name in "abc"))
        assert all(queue.output is None for queue in server.queues.values())
        await asyncio.sleep(0.02)
    for parts in await asyncio.gather(*(server.read(name) for name in "abc")):
        assert tokens_of(parts) == list(range(20))


@pytest.mark.parametrize("together", [1, 40])
async def test_a_stream_keeps_no_log_probabilities_that_it_has_sent(server: Server, together: int) -> None:
    """Of a client that keeps up, which waits for nothing, and of one that has fallen behind."""
    server.add("a", STREAM)
    for start in range(0, 400, together):
        for token in range(start, start + together):
            server.step(output("a", token))
        found = []
        while len(found) < together:
            [part] = (await asyncio.wait_for(server.queues["a"].get(), 20)).outputs
            found += part.token_ids
            assert [next(iter(each)) for each in part.logprobs] == part.token_ids
            await asyncio.sleep(0)
        assert found == list(range(start, start + together))
    assert len(server.processor.request_states["a"].logprobs_processor.logprobs) <= max(20, together)
    assert bool(server.recorded) == (together > 1)


async def test_a_stream_in_intervals_has_the_log_probabilities_of_all_its_tokens(server: Server) -> None:
    """``--stream-interval``: its tokens are sent eight at a time, and so long their log-probabilities are kept."""
    server.processor.stream_interval = 8
    server.add("a", STREAM)
    for token in range(65):
        server.step(output("a", token))
        await asyncio.sleep(0)
        if token % 8 == 0:
            [part] = (await asyncio.wait_for(server.queues["a"].get(), 20)).outputs
            assert (
                part.token_ids
                == [next(iter(each)) for each in part.logprobs]
                == list(range(max(0, token - 7), token + 1))
            )


async def test_flat_log_probabilities_stop_no_ones_outputs(server: Server) -> None:
    """/inference/v1/generate takes ``flat_logprobs``, whose container deletes nothing."""
    server.add("a", STREAM)
    server.processor.request_states["a"].logprobs_processor.logprobs = FlatLogprobs()
    for token in range(50):
        server.step(output("a", token))
        assert (await server.queues["a"].get()).outputs[0].token_ids == [token]
        await asyncio.sleep(0)


async def test_a_prompt_s_log_probabilities_are_those_of_upstream_in_slices(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, processed = torch.arange(100 * WIDTH).reshape(100, WIDTH), [0]

    def count(each: EngineCoreOutput) -> None:
        if (tensors := each.new_prompt_logprobs_tensors) is not None:
            processed.append(tensors.logprobs.numel())

    async def answer(processor: OutputProcessor, server: Server) -> Any:
        server.processor = processor
        server.add("a", WHOLE, 101)
        tensors = LogprobsTensors(ids, -ids.float(), torch.ones(100, dtype=torch.int))
        server.step(output("a", 7, FinishReason.LENGTH, new_prompt_logprobs_tensors=tensors))
        return (await server.read("a"))[0].prompt_logprobs

    before_processing(monkeypatch, count)
    ours = await answer(server.processor, server)
    assert sum(processed) == ids.numel() and max(processed) <= SLICE
    assert ours == await answer(OutputProcessor(None, log_stats=True), server) and len(ours) == 101


async def test_streams_that_end_while_they_wait_hold_up_no_other(server: Server) -> None:
    """One is aborted, and one meets a stop string, of which the engine does not know."""
    stopped: list[str] = []

    async def stop(request_ids: list[str]) -> None:
        stopped.extend(request_ids)

    server.processor.client.engine_core = SimpleNamespace(abort_requests_async=stop)
    for name in ("gone", "met", "other"):
        server.add(name, STREAM)
        reason = FinishReason.LENGTH if name == "other" else None
        server.step(*(output(name, token) for token in range(40)), output(name, 40, reason))
    await server.abort("gone", internal=True)
    server.processor.request_states["met"].detokenizer.update = lambda *_: "stop"
    met, other = await asyncio.gather(server.read("met"), server.read("other"))
    assert tokens_of(other) == list(range(41))
    assert (met[-1].outputs[0].stop_reason, stopped) == ("stop", ["met"])


async def test_waiting_outputs_do_not_keep_the_messages_that_they_came_in(server: Server) -> None:
    await server.fall_behind("slow", 20)
    messages = []
    for token in range(20, 30):
        each = output("slow", token)
        message = np.repeat(each.new_logprobs.logprobs, 1000, axis=0)
        messages.append(weakref.ref(message))
        each.new_logprobs = each.new_logprobs._replace(logprobs=message[:1])
        server.step(each)
    del each, message
    assert not any(message() is not None for message in messages)


async def test_a_fault_ends_its_own_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(each: EngineCoreOutput) -> None:
        if each.new_token_ids == [66]:
            raise ArithmeticError("injected")

    before_processing(monkeypatch, fail)
    for name in ("a", "b"):
        server.add(name, WHOLE)
    server.step(*(output("a", 1) for _ in range(30)), output("b", 66), output("a", 2, FinishReason.LENGTH))
    assert (await server.read("a"))[0].outputs[0].token_ids[-1] == 2
    with pytest.raises(InputStreamError, match="injected"):
        await server.read("b")
    assert server.aborted == ["b"]
