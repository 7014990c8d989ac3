"""What upstream's own output processor is seen to do, request by request."""

import asyncio
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from ropeswitch.model_patches.switch.placement import asked_placement
from ropeswitch.server.front import refusal
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.metrics import outputs
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import OutputWatch, WatchedOutputs, engine_finder, start
from ropeswitch.server.metrics.traces import attributes
from tests.server.metrics.ladders import ladder, read, total
from tests.server.placing import engine_ladder

LADDER = ladder(10, 20, 64)
# Its length bands.
SHORT, MIDDLE = "1-10", "11-20"
OF_PROMPT = ("time_to_first_token", "request_queue_time", "request_prefill_time")
OF_ANSWER = ("e2e_request_latency", "request_decode_time", "request_time_per_output_token")


class Server:
    """An API server's output processor without a server, whose requests go to the engine ``engine``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = 0
        metrics = LengthMetrics(LADDER, "m", self.registry)
        self.processor = WatchedOutputs(None, log_stats=True)
        self.processor.ropeswitch = OutputWatch(engine_ladder(LADDER), metrics, lambda _: self.engine)
        self.now = 100.0

    def add(
        self,
        name: str,
        prompt: int,
        forced: str | None = None,
        parent: ParentRequest | None = None,
        policy: str | None = None,
    ) -> None:
        queue = RequestOutputCollector(RequestOutputKind.DELTA, name)
        self.processor.add_request(request(name, prompt, forced, policy), None, parent, 0, queue)

    def step(self, *outputs: EngineCoreOutput, seconds: float = 0.5) -> None:
        """One step's outputs, as ``AsyncLLM``'s output handler handles them."""
        self.now += seconds
        self.processor.process_outputs(list(outputs), self.now, IterationStats())

    def value(self, name: str, **labels: str) -> float:
        return total(read(self.registry), f"ropeswitch_{name}", **labels)

    def count(self, name: str, **labels: str) -> float:
        """The observations of a histogram."""
        return self.value(f"{name}_seconds_count", **labels)


def request(name: str, prompt: int, forced: str | None = None, policy: str | None = None) -> EngineCoreRequest:
    asked = {"rope_factor_set": forced, "rope_ladder_policy": policy}
    extra = {field: value for field, value in asked.items() if value is not None} or None
    params = SamplingParams(max_tokens=50, detokenize=False, extra_args=extra, output_kind=RequestOutputKind.DELTA)
    placement = asked_placement(engine_ladder(LADDER), params, min(prompt, 64), None)
    return EngineCoreRequest(
        request_id=name,
        external_req_id=name,
        prompt_token_ids=[5] * prompt,
        mm_features=None,
        sampling_params=placement.carried_by(params),
        pooling_params=None,
        arrival_time=time.time() - 2.0,
        lora_request=None,
        cache_salt=placement.salt,
        data_parallel_rank=None,
    )


def output(name: str, tokens: int = 1, reason: FinishReason | None = None, **more: Any) -> EngineCoreOutput:
    return EngineCoreOutput(name, [7] * tokens, finish_reason=reason, **more)


def prefill(prompt: int, cached: int = 0) -> PrefillStats:
    """The statistics of the first output after a prefill, or a switch from this length (``_report_switch``)."""
    stats = PrefillStats()
    stats.set(prompt, cached, 0)
    return stats


def first(name: str, prompt: int, started: float = 100.0) -> EngineCoreOutput:
    """The first output, with the events and statistics that an engine sends with it."""
    queued = EngineCoreEvent(EngineCoreEventType.QUEUED, started - 1.0)
    scheduled = EngineCoreEvent(EngineCoreEventType.SCHEDULED, started)
    return output(name, prefill_stats=prefill(prompt), events=[queued, scheduled])


@pytest.fixture
def server() -> Server:
    return Server()


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
    assert server.value("requests_total", outcome="stop", **here) == server.value("requests_total") == 1
    assert server.value("prompt_tokens_total", **here) == 5
    assert server.value("generated_tokens_total", **here) == 3 and server.value("switches_total") == 0


def test_a_stream_that_switches(server: Server) -> None:
    """A prompt of 9 tokens: the second token is computed from 10, the third from 11, which is in the next set."""
    server.add("a", 9)
    track = server.processor.request_states["a"].ropeswitch
    server.step(first("a", 9))
    server.step(output("a"))
    server.step(output("a", prefill_stats=prefill(10, cached=8)), seconds=3.0)
    server.step(output("a"))
    server.step(output("a", reason=FinishReason.LENGTH))
    assert server.value("switches_total") == 1 and server.value("switch_stall_seconds_sum") == pytest.approx(3.0)
    # Of the first token, the queue and the prefill it is the prompt's set that counts.
    for name, counts in {
        "inter_token_latency_seconds_count": (1, 3),
        "generated_tokens_total": (2, 3),
        "switches_total": (0, 1),
        "switch_stall_seconds_count": (0, 1),
        "switch_recomputed_tokens_total": (0, 2),
        "switch_cached_tokens_total": (0, 8),
        **dict.fromkeys([f"{each}_seconds_count" for each in OF_PROMPT], (1, 0)),
        **dict.fromkeys([f"{each}_seconds_count" for each in OF_ANSWER], (0, 1)),
        "requests_total": (0, 1),
    }.items():
        found = tuple(server.value(name, input_sequence_length=SHORT, factor_set=each) for each in ("set0", "set1"))
        assert found == counts, name
    assert server.value("requests_total", outcome="length") == 1
    assert attributes(track, Bands(LADDER), LADDER.names) == {
        "ropeswitch.length_band": SHORT,
        "ropeswitch.factor_set": "set0",
        "ropeswitch.ladder_policy": "length",
        "ropeswitch.factor_set_end": "set1",
        "ropeswitch.switches": 1,
        "ropeswitch.recomputed_tokens": 2,
    }


def test_several_tokens_at_once_across_two_sets(server: Server) -> None:
    """Computed from 8, 9, 13, 17 and 21 tokens; the engine reports the switches."""
    server.add("a", 8)
    server.step(first("a", 8))
    for switched in (None, 12, None, 20):
        server.step(output("a", tokens=4, prefill_stats=switched and prefill(switched)))
    assert [server.value("generated_tokens_total", factor_set=f"set{i}") for i in range(3)] == [5, 8, 4]
    # A histogram has no room for what two switches bring.
    assert [server.count("inter_token_latency", factor_set=name) for name in ("set0", "set1", "other")] == [1, 2, 1]


def test_what_chose_the_set_which_then_stays(server: Server) -> None:
    """A limit of 50 tokens reserves the last set."""
    for name, forced, policy, factor_set in (
        ("forced", "set1", None, "set1"),
        ("reserve", None, "reserve", "set2"),
        ("length", None, None, "set0"),
    ):
        server.engine = len(name)
        token = current.set(context := RequestContext())
        server.add(name, 5, forced, policy=policy)
        current.reset(token)
        # As the front and the access log see it.
        [track] = context.entered.sequences
        assert (track.placement.name, track.placement.chosen_by) == (factor_set, name)
        server.step(first(name, 5))
        for _ in range(20 if policy else 2):
            server.step(output(name))
        server.step(output(name, reason=FinishReason.LENGTH))
        assert server.value("ladder_policy_requests_total", model_name="m", policy=name) == 1
        here = {"factor_set": factor_set, "engine": str(len(name)), "input_sequence_length": SHORT}
        assert server.value("prompt_tokens_total", **here) == 5
        assert server.value("generated_tokens_total", **here) == (22 if policy else 4)
        assert server.value("requests_total", **here) == 1
    assert server.value("requests_total") == 3


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


def test_answers_that_end_early_count_once_with_all_their_tokens_and_no_times_of_whole_ones(server: Server) -> None:
    parent = ParentRequest(request("parent", 5))
    children = [parent.get_child_info(index)[0] for index in range(2)]
    for name in (*children, "cut", "failed", "aborted", "dead"):
        server.add(name, 5, parent=parent if name in children else None)
        server.step(first(name, 5), output(name), seconds=0.1)
    server.step(output("cut", tokens=0, reason=FinishReason.ABORT), seconds=0.1)
    server.step(output("failed", tokens=0, reason=FinishReason.ERROR), seconds=0.1)
    server.processor.abort_requests([parent.request_id], internal=True)
    server.processor.abort_requests(["aborted", *children], internal=True)
    server.processor.propagate_error(RuntimeError("dead"))
    server.processor.abort_requests(["dead"], internal=True)
    # What comes afterwards is not counted.
    server.step(output("dead", reason=FinishReason.STOP), seconds=2)
    assert live(server) == {}
    assert server.value("requests_total") == server.count("time_to_first_token") == 6
    outcomes = {outcome: server.value("requests_total", outcome=outcome) for outcome in ("abort", "error")}
    assert outcomes == {"abort": 4, "error": 2}
    assert server.value("generated_tokens_total") == 12 and server.count("inter_token_latency") == 6
    assert server.count("e2e_request_latency") == server.count("request_decode_time") == 0


def test_a_client_that_leaves_is_told_from_an_abort_and_a_fault(server: Server) -> None:
    """Upstream's ``generate`` aborts its request as it handles what ended it."""

    for name, error in (
        ("cancelled", asyncio.CancelledError()),
        ("closed", GeneratorExit()),
        ("fault", RuntimeError("fault")),
        ("abort", None),
    ):
        server.add(name, 15)
        try:
            if error is not None:
                raise error
        except BaseException:
            server.processor.abort_requests([name], internal=True)
        else:
            server.processor.abort_requests([name], internal=False)
    here = {"input_sequence_length": MIDDLE, "factor_set": "set1"}
    outcomes = {name: server.value("requests_total", outcome=name, **here) for name in ("disconnect", "error", "abort")}
    assert outcomes == {"disconnect": 2, "error": 1, "abort": 1}
    assert server.value("requests_total") == 4


def test_nothing_is_measured_where_upstream_measures_nothing() -> None:
    """With ``--disable-log-stats`` upstream makes no statistics of a step and no manager of them."""
    client = SimpleNamespace(logger_manager=None, output_processor=WatchedOutputs(None, log_stats=False))
    assert start(client, engine_ladder(LADDER)) is None
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
    # The only one is that of every request.
    assert engine_finder(SimpleNamespace(core_engines=[b"\3\0"], engine_ranks_managed=[3]))("a") == 3
    for name in ("generated_tokens_total", "requests_total"):
        assert server.value(name, engine="2") == server.value(name) == 1, name


def live(server: Server) -> dict[tuple[str, str, str], float]:
    """Return the number of live sequences by band, set and state, without zeros."""
    found = {}
    for (name, labels), value in read(server.registry).items():
        if name == "ropeswitch_live_requests" and value:
            has = dict(labels)
            found[has["input_sequence_length"], has["factor_set"], has["state"]] = value
    return found


def test_live_sequences_move_and_end(server: Server) -> None:
    """A prompt of 9 tokens outgrows its set at the third computed token."""
    for name in ("a", "b", "c", "d"):
        server.add(name, 9)
    assert live(server) == {(SHORT, "set0", "waiting"): 4}
    server.step(first("a", 9), first("b", 9))
    assert live(server) == {(SHORT, "set0", "waiting"): 2, (SHORT, "set0", "generating"): 2}
    server.step(output("a"))
    server.step(output("a", prefill_stats=prefill(10)))
    assert live(server)[SHORT, "set1", "generating"] == live(server)[SHORT, "set0", "generating"] == 1
    server.step(output("a", reason=FinishReason.STOP), output("b", tokens=0, reason=FinishReason.ABORT))
    assert live(server) == {(SHORT, "set0", "waiting"): 2}
    server.processor.abort_requests(["c"], internal=True)
    assert live(server) == {(SHORT, "set0", "waiting"): 1}
    server.processor.propagate_error(RuntimeError("dead"))
    server.processor.abort_requests(["d"], internal=True)
    assert live(server) == {}


def test_a_session_is_live_until_its_last_chunk(server: Server) -> None:
    """The session ends with its last chunk if all others were answered, otherwise with that chunk's answer."""

    def chunk(name: str, more: bool) -> None:
        sent = request(name, 4)
        sent.resumable = more
        server.processor.add_request(sent, None, None, 0, RequestOutputCollector(RequestOutputKind.DELTA, name))

    for name in ("early", "late"):
        chunk(name, more=True)
    chunk("early", more=False)
    for name in ("early", "late"):
        server.step(first(name, 4), output(name, reason=FinishReason.LENGTH))
    assert live(server) == {(SHORT, "set0", "generating"): 1}
    chunk("late", more=False)
    assert live(server) == {}
    for _ in range(4):
        chunk("long", more=True)
        server.step(first("long", 4), output("long"), output("long", reason=FinishReason.LENGTH), seconds=0.1)
    chunk("long", more=False)
    assert server.value("generated_tokens_total") == 4 + 12 and server.count("inter_token_latency") == 2 + 8
