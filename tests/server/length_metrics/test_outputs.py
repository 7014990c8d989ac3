"""What upstream's own output processor is seen to do, request by request."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import PrefillStats

from ropeswitch.model_patches.switch.placement import place
from ropeswitch.server.front import refusal
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.metrics import outputs
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import WatchedOutputs, engine_finder, start
from ropeswitch.server.metrics.traces import attributes
from tests.server.length_metrics.ladders import read
from tests.server.length_metrics.processor import LADDER, LONG, MIDDLE, SHORT, Server, first, output, request, switch
from tests.server.placing import engine_ladder


def test_a_short_answer(server: Server) -> None:
    server.add("a", 5)
    server.step(first("a", 5))
    server.step(output("a"), seconds=0.25)
    server.step(output("a", reason=FinishReason.STOP), seconds=0.25)
    here = {"model_name": "m", "engine": "0", "input_sequence_length": SHORT, "factor_set": "set0"}
    assert server.count("time_to_first_token", **here) == 1
    assert 2 <= server.value("time_to_first_token_seconds_sum", **here) < 4
    assert server.count("inter_token_latency", **here) == 2
    assert server.value("inter_token_latency_seconds_sum", **here) == pytest.approx(0.5)
    for name, seconds in (("queue_time", 1.0), ("prefill_time", 0.5), ("decode_time", 0.5)):
        assert server.value(f"request_{name}_seconds_sum", **here) == pytest.approx(seconds), name
    assert server.value("request_time_per_output_token_seconds_sum", **here) == pytest.approx(0.25)
    assert server.count("e2e_request_latency", **here) == 1
    assert server.value("requests_total", outcome="stop", **here) == 1
    assert server.value("prompt_tokens_total", **here) == 5
    assert server.value("generated_tokens_total", **here) == 3
    # Nothing anywhere else.
    assert server.value("requests_total") == 1 and server.value("switches_total") == 0


def test_a_stream_that_switches(server: Server) -> None:
    """A prompt of 9 tokens: the second token is computed from 10, the third from 11, which is in the next set."""
    server.add("a", 9)
    server.step(first("a", 9))
    server.step(output("a"))
    statistics = PrefillStats()
    statistics.set(10, 8, 0)
    server.step(output("a", prefill_stats=statistics), seconds=3.0)
    server.step(output("a"))
    server.step(output("a", reason=FinishReason.LENGTH))
    before = {"input_sequence_length": SHORT, "factor_set": "set0"}
    after = {"input_sequence_length": SHORT, "factor_set": "set1"}
    assert server.count("inter_token_latency", **before) == 1
    assert server.count("inter_token_latency", **after) == 3
    assert server.value("generated_tokens_total", **before) == 2
    assert server.value("generated_tokens_total", **after) == 3
    assert server.value("switches_total") == server.value("switches_total", **after) == 1
    assert server.count("switch_stall", **after) == 1
    assert server.value("switch_stall_seconds_sum", **after) == pytest.approx(3.0)
    assert server.value("switch_recomputed_tokens_total", **after) == 2
    assert server.value("switch_cached_tokens_total", **after) == 8
    # Of the first token, the queue and the prefill it is the prompt's set that counts.
    for name in ("time_to_first_token", "request_queue_time", "request_prefill_time"):
        assert (server.count(name, **before), server.count(name, **after)) == (1, 0), name
    for name in ("e2e_request_latency", "request_decode_time", "request_time_per_output_token"):
        assert (server.count(name, **before), server.count(name, **after)) == (0, 1), name
    assert server.value("requests_total", outcome="length", **after) == 1


def test_a_span_and_the_access_log_tell_both_switches(server: Server) -> None:
    server.add("a", 9)
    track = server.processor.request_states["a"].ropeswitch
    server.step(first("a", 9))
    server.step(output("a"))
    for computed, tokens in ((10, 10), (20, 2)):
        statistics = PrefillStats()
        statistics.set(computed, 8, 0)
        server.step(output("a", tokens, prefill_stats=statistics))
    server.step(output("a", reason=FinishReason.LENGTH))
    assert (track.later, track.outcome) == ([1, 2], "length") and 2 <= track.waited < 4
    assert attributes(track, Bands(LADDER), LADDER.names) == {
        "ropeswitch.length_band": SHORT,
        "ropeswitch.factor_set": "set0",
        "ropeswitch.ladder_policy": "length",
        "ropeswitch.factor_set_end": "set2",
        "ropeswitch.switches": 2,
        "ropeswitch.recomputed_tokens": 14,
    }


def test_what_chose_the_set(server: Server) -> None:
    """A limit of 50 tokens reserves the last set, in which the sequence starts and ends."""
    server.add("a", 5, policy="reserve")
    server.step(first("a", 5))
    for _ in range(20):
        server.step(output("a"))
    server.step(output("a", reason=FinishReason.LENGTH))
    for name, forced in (("b", "set1"), ("c", None)):
        server.add(name, 5, forced)
        server.step(first(name, 5))
    for policy, factor_set in (("reserve", "set2"), ("forced", "set1"), ("length", "set0")):
        assert server.value("ladder_policy_requests_total", model_name="m", policy=policy) == 1
        assert server.value("prompt_tokens_total", factor_set=factor_set) == 5
    assert server.value("requests_total", factor_set="set2") == server.value("requests_total") == 1


def test_several_tokens_at_once_across_two_sets(server: Server) -> None:
    server.add("a", 8)
    server.step(first("a", 8))
    # Computed from 8, 9, 13, 17 and 21 tokens; the engine reports the switches.
    for switched in (None, 13, None, 21):
        server.step(output("a", tokens=4, prefill_stats=switched and switch(switched)))
    sets = [server.value("generated_tokens_total", factor_set=f"set{i}") for i in range(3)]
    assert sets == [5, 8, 4]
    # A histogram has no room for what two switches bring.
    sets = [server.count("inter_token_latency", factor_set=name) for name in ("set0", "set1", "other")]
    assert sets == [1, 2, 1]


def test_tokens_are_told_once_a_second_and_at_the_end(server: Server) -> None:
    server.engine = 1
    server.add("a", 1)
    server.step(first("a", 1))
    counts = []
    for _ in range(5):
        server.step(output("a", tokens=2), seconds=0.4)
        counts.append(server.value("generated_tokens_total", engine="1"))
    assert counts == [1, 1, 7, 7, 7]
    assert server.count("inter_token_latency", engine="1") == 3
    server.step(output("a", reason=FinishReason.LENGTH), seconds=0.1)
    assert server.value("generated_tokens_total", engine="1") == 12
    assert server.count("inter_token_latency", engine="1") == 6
    assert server.value("inter_token_latency_seconds_sum", engine="1") == pytest.approx(2.1)


def test_tokens_of_a_stream_that_ends_early_are_all_told(server: Server) -> None:
    server.engine = 1
    for name in ("a", "b"):
        server.add(name, 2)
        server.step(first(name, 2))
        server.step(output(name), seconds=0.1)
    assert server.value("generated_tokens_total") == 2
    server.processor.abort_requests(["a"], internal=True)
    assert server.value("generated_tokens_total", engine="1") == 3
    server.processor.propagate_error(RuntimeError())
    assert server.value("generated_tokens_total", engine="1") == 4
    assert server.count("inter_token_latency", engine="1") == 2
    assert server.value("requests_total", engine="1") == 2


def test_a_set_that_is_asked_for_stays(server: Server) -> None:
    server.add("a", 9, forced="set2")
    server.step(first("a", 9))
    for _ in range(5):
        server.step(output("a"), seconds=1)
    assert server.value("generated_tokens_total", factor_set="set2", input_sequence_length=SHORT) == 6
    assert server.value("generated_tokens_total") == 6


def test_engines_have_their_own(server: Server) -> None:
    for name, engine in (("a", 0), ("b", 1), ("c", 1)):
        server.engine = engine
        server.add(name, 15)
        server.step(first(name, 15))
        server.step(output(name, reason=FinishReason.STOP))
    assert [server.value("requests_total", engine=str(engine)) for engine in (0, 1)] == [1, 2]
    assert [server.value("prompt_tokens_total", engine=str(engine)) for engine in (0, 1)] == [15, 30]


def test_an_answer_that_is_cut_off_has_no_times_of_a_whole_one(server: Server) -> None:
    server.add("a", 5)
    server.step(first("a", 5))
    server.step(output("a", tokens=0, reason=FinishReason.ABORT))
    server.add("b", 5)
    server.step(output("b", tokens=0, reason=FinishReason.ERROR))
    assert server.value("requests_total", outcome="abort") == server.value("requests_total", outcome="error") == 1
    assert server.count("time_to_first_token") == 1 and server.count("inter_token_latency") == 0
    assert server.count("e2e_request_latency") == server.count("request_decode_time") == 0


def test_a_client_that_leaves_is_told_from_an_abort_and_a_fault(server: Server) -> None:
    """Upstream's ``generate`` aborts its request as it handles what ended it."""

    async def generate(name: str) -> AsyncGenerator[int, None]:
        async def abort() -> None:
            await asyncio.sleep(0)
            server.processor.abort_requests([name], internal=True)

        try:
            for number in range(3):
                yield number
                await asyncio.sleep(60 if number else 0)
                if name == "fault":
                    raise RuntimeError("fault")
        except (asyncio.CancelledError, GeneratorExit):
            await abort()
            raise
        except RuntimeError:
            await abort()

    async def consume(name: str) -> None:
        async for _ in generate(name):
            pass

    async def main() -> None:
        cancelled = asyncio.create_task(consume("cancelled"))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        closed = generate("closed")
        await anext(closed)
        await closed.aclose()
        await consume("fault")
        await asyncio.wait([cancelled])

    for name in ("cancelled", "closed", "fault", "abort"):
        server.add(name, 15)
    server.step(first("cancelled", 15))
    asyncio.run(main())
    server.processor.abort_requests(["abort"], internal=False)
    here = {"input_sequence_length": MIDDLE, "factor_set": "set1"}
    outcomes = {name: server.value("requests_total", outcome=name, **here) for name in ("disconnect", "error", "abort")}
    assert outcomes == {"disconnect": 2, "error": 1, "abort": 1}
    assert server.value("requests_total") == 4


def test_every_answer_of_a_prompt_counts_once(server: Server) -> None:
    parent = ParentRequest(request("parent", 25))
    names = []
    for index in range(3):
        name, _ = parent.get_child_info(index)
        names.append(name)
        server.add(name, 25, parent=parent)
    server.step(*(first(name, 25) for name in names))
    server.step(output(names[0], reason=FinishReason.STOP))
    server.processor.abort_requests([parent.request_id], internal=True)
    server.processor.abort_requests(names, internal=True)
    assert server.value("requests_total", outcome="stop") == 1
    assert server.value("requests_total", outcome="abort", input_sequence_length=LONG) == 2
    assert server.value("requests_total") == 3


def test_a_dead_engine_fails_all_its_requests_once(server: Server) -> None:
    for name in ("a", "b"):
        server.add(name, 5)
    server.processor.propagate_error(RuntimeError("dead"))
    server.processor.abort_requests(["a", "b"], internal=True)
    assert server.value("requests_total", outcome="error") == server.value("requests_total") == 2


def test_a_prompt_that_reaches_an_engine_is_not_counted_as_a_request_too(server: Server) -> None:
    context = RequestContext()
    token = current.set(context)
    server.add("a", 5)
    current.reset(token)
    assert context.entered.sequences


def test_the_set_of_a_prompt_is_the_one_that_its_request_carries(server: Server) -> None:
    """Not worked out again by length, which would give another set here."""
    asked = request("a", 5)
    placement = place(engine_ladder(LADDER), 5, forced="set2")
    asked.sampling_params = placement.carried_by(asked.sampling_params)
    asked.cache_salt = placement.salt
    context = RequestContext()
    token = current.set(context)
    server.processor.add_request(asked, None, None, 0, RequestOutputCollector(RequestOutputKind.DELTA, "a"))
    current.reset(token)
    server.step(first("a", 5))
    [track] = context.entered.sequences
    assert track.placement == placement and track.first[1] == 2
    assert server.value("generated_tokens_total", factor_set="set2") == 1


def test_nothing_is_measured_where_upstream_measures_nothing() -> None:
    """With ``--disable-log-stats`` upstream makes no statistics of a step and no manager of them."""
    client = SimpleNamespace(logger_manager=None, output_processor=WatchedOutputs(None, log_stats=False))
    assert start(client, engine_ladder(LADDER)) is None
    assert client.output_processor.ropeswitch is None
    server = Server()
    for processor in (client.output_processor, server.processor):
        queue = RequestOutputCollector(RequestOutputKind.DELTA, "b")
        processor.add_request(request("b", 5), None, None, 0, queue)
        processor.process_outputs([first("b", 5), output("b", reason=FinishReason.STOP)], 101.0, None)
    assert not any(read(server.registry).values())


def test_the_engine_is_found_once_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several engines, the client chooses one after the output processor has the request, and forgets it early."""
    monkeypatch.setattr(outputs, "LengthMetrics", partial(LengthMetrics, registry=(registry := CollectorRegistry())))
    monkeypatch.setattr(refusal, "listeners", [])
    core = SimpleNamespace(core_engines=[b"0", b"1"], engine_ranks_managed=[0, 2], reqs_in_flight={})
    server = Server()
    server.processor, server.registry = WatchedOutputs(None, log_stats=True), registry
    start(
        SimpleNamespace(
            output_processor=server.processor,
            logger_manager=(),
            engine_core=core,
            model_config=SimpleNamespace(served_model_name="m"),
        ),
        engine_ladder(LADDER),
    )

    async def one_output() -> None:
        server.add("a", 5)
        core.reqs_in_flight["a"] = b"1"
        await asyncio.sleep(0)
        del core.reqs_in_flight["a"]
        last = first("a", 5)
        last.finish_reason = FinishReason.STOP
        server.step(last)

    asyncio.run(one_output())
    for name in ("generated_tokens_total", "requests_total"):
        assert server.value(name, engine="2") == server.value(name) == 1, name


def test_what_comes_after_an_error_is_not_counted(server: Server) -> None:
    server.add("a", 2)
    server.step(first("a", 2), output("a"))
    server.processor.propagate_error(RuntimeError())
    server.step(output("a"), seconds=2)
    server.step(output("a", reason=FinishReason.STOP))
    assert server.value("generated_tokens_total") == 2 and server.count("inter_token_latency") == 1
    assert server.value("requests_total") == server.value("requests_total", outcome="error") == 1


def test_the_engine_of_a_request() -> None:
    one = SimpleNamespace(core_engines=[b"\3\0"], engine_ranks_managed=[3])
    assert engine_finder(one)("a") == 3
    several = SimpleNamespace(
        core_engines=[b"\0\0", b"\1\0"], engine_ranks_managed=[4, 5], reqs_in_flight={"a": b"\1\0"}
    )
    find = engine_finder(several)
    assert find("a") == 5 and find("b") is None
