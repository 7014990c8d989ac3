"""What upstream's own output processor is seen to do, request by request."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from vllm import SamplingParams
from vllm.outputs import RequestError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from ropeswitch.model_patches.switch.placement import asked_placement
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import OutputWatch, WatchedOutputs, engine_finder, start
from tests.server.metrics.ladders import ladder, read, total
from tests.server.placing import engine_ladder, engine_request

LADDER = ladder(10, 20, 64)
# Its length bands.
SHORT, MIDDLE = "1-10", "11-20"


class Server:
    """An API server's output processor without a server, whose requests go to the engine ``engine``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = 0
        self.metrics = LengthMetrics(LADDER, "m", self.registry)
        self.processor = WatchedOutputs(None, log_stats=True)
        self.watch(lambda _: self.engine)
        self.now = 100.0

    def watch(self, engine_of: Callable[[str], int | None]) -> None:
        self.processor.ropeswitch = OutputWatch(engine_ladder(LADDER), self.metrics, engine_of)

    def add(self, name: str, prompt: int, parent: ParentRequest | None = None, **asked: Any) -> None:
        """Add a request, or a chunk of a session: a ``resumable`` one, and then its last."""
        sent = request(name, prompt, **asked)
        self.processor.add_request(sent, None, parent, 0, RequestOutputCollector(RequestOutputKind.DELTA, name))

    def step(self, *outputs: EngineCoreOutput, seconds: float = 0.5) -> None:
        """One step's outputs, as ``AsyncLLM``'s output handler handles them."""
        self.now += seconds
        self.processor.process_outputs(list(outputs), self.now, IterationStats())

    def value(self, name: str, **labels: str) -> float:
        return total(read(self.registry), f"ropeswitch_{name}", **labels)

    def count(self, name: str, **labels: str) -> float:
        """The observations of a histogram."""
        return self.value(f"{name}_seconds_count", **labels)

    def answer(self, name: str, prompt: int, **asked: Any) -> None:
        """A request of two tokens."""
        self.add(name, prompt, **asked)
        self.step(first(name, prompt))
        self.step(output(name, reason=FinishReason.LENGTH))

    def live(self) -> dict[tuple[str, str], float]:
        """The number of live sequences by set and state, without zeros."""
        by = {(index, state): 0.0 for index in LADDER.names for state in ("waiting", "generating")}
        return {key: found for key in by if (found := self.value("live_requests", factor_set=key[0], state=key[1]))}


def request(name: str, prompt: int, max_tokens: int = 50, resumable: bool = False, **extra: str) -> EngineCoreRequest:
    params = SamplingParams(
        max_tokens=max_tokens, detokenize=False, extra_args=extra or None, output_kind=RequestOutputKind.DELTA
    )
    placement = asked_placement(engine_ladder(LADDER), params, min(prompt, 64), None)
    carried = placement.carried_by(params)
    return engine_request(name, prompt, carried, cache_salt=placement.salt, resumable=resumable)


def output(name: str, tokens: int = 1, reason: FinishReason | None = None, **more: Any) -> EngineCoreOutput:
    return EngineCoreOutput(name, [7] * tokens, finish_reason=reason, **more)


def prefill(prompt: int, cached: int = 0) -> PrefillStats:
    """The statistics of the first output after a prefill, or a switch from this length (``_report_switch``)."""
    stats = PrefillStats()
    stats.set(prompt, cached, 0)
    return stats


def first(name: str, prompt: int) -> EngineCoreOutput:
    """The first output, with the events and statistics that an engine sends with it."""
    events = [EngineCoreEvent(EngineCoreEventType.QUEUED, 99.0), EngineCoreEvent(EngineCoreEventType.SCHEDULED, 100.0)]
    return output(name, prefill_stats=prefill(prompt), events=events)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.skipif("error" not in EngineCoreOutput.__struct_fields__, reason="vLLM 0.32.0 rejects nothing on arrival")
def test_a_request_that_its_engine_rejects_on_arrival_counts_as_an_error(server: Server) -> None:
    """A paused engine does; nothing was run."""
    server.add("a", 9)
    rejected = output("a", tokens=0, reason=FinishReason.ERROR)
    rejected.error = RequestError("paused", "the engine is paused", retryable=True)
    server.step(rejected)
    assert server.live() == {}
    assert server.value("requests_total", outcome="error", input_sequence_length=SHORT) == 1


def test_an_answer_that_outgrows_its_set_counts_in_both(server: Server) -> None:
    """A prompt of 9 tokens: the second token is computed from 10, the third from 11, which is in the next set."""
    server.add("a", 9)
    server.add("b", 9)
    server.step(first("a", 9))
    server.step(output("a"))
    assert server.live() == {("set0", "waiting"): 1, ("set0", "generating"): 1}
    server.step(output("a", prefill_stats=prefill(10, cached=8)), seconds=3.0)
    assert server.live() == {("set0", "waiting"): 1, ("set1", "generating"): 1}
    server.step(output("a"))
    server.step(output("a", reason=FinishReason.LENGTH))
    assert server.live() == {("set0", "waiting"): 1}
    # Of the first token, the queue and the prefill it is the prompt's set that counts.
    for name, counts in {
        "inter_token_latency_seconds_count": (1, 3),
        "inter_token_latency_seconds_sum": (0.5, 4.0),
        "prompt_tokens_total": (9, 0),
        "generated_tokens_total": (2, 3),
        "switches_total": (0, 1),
        "switch_stall_seconds_sum": (0, 3.0),
        "switch_recomputed_tokens_total": (0, 2),
        "switch_cached_tokens_total": (0, 8),
        "time_to_first_token_seconds_count": (1, 0),
        "e2e_request_latency_seconds_count": (0, 1),
        "request_queue_time_seconds_sum": (1.0, 0),
        "request_prefill_time_seconds_sum": (0.5, 0),
        "request_decode_time_seconds_sum": (0, 4.5),
        "request_time_per_output_token_seconds_sum": (0, 4.5 / 4),
        "requests_total": (0, 1),
    }.items():
        found = tuple(server.value(name, input_sequence_length=SHORT, factor_set=each) for each in ("set0", "set1"))
        assert found == pytest.approx(counts), name
    assert 2 <= server.value("time_to_first_token_seconds_sum") < 4
    assert server.value("requests_total", outcome="length") == 1


def test_an_answer_that_switches_twice_counts_in_three_sets(server: Server) -> None:
    """Computed from 8, 9, 13, 17 and 21 tokens; the engine reports the switches."""
    server.add("a", 8)
    server.step(first("a", 8))
    for switched in (None, 12, None, 20):
        server.step(output("a", tokens=4, prefill_stats=switched and prefill(switched)))
    assert [server.value("generated_tokens_total", factor_set=each) for each in LADDER.names] == [5, 8, 4]


def test_answers_are_counted_by_what_chose_their_set(server: Server) -> None:
    """A limit of 50 tokens reserves the last set."""
    for chosen_by, factor_set, asked in (
        ("forced", "set1", {"rope_factor_set": "set1"}),
        ("reserve", "set2", {"rope_ladder_policy": "reserve"}),
        ("length", "set0", {}),
    ):
        server.engine = len(chosen_by)
        server.answer("a", 5, **asked)
        assert server.value("ladder_policy_requests_total", model_name="m", policy=chosen_by) == 1
        here = {"factor_set": factor_set, "engine": str(len(chosen_by)), "input_sequence_length": SHORT}
        for name, count in (("prompt_tokens_total", 5), ("generated_tokens_total", 2), ("requests_total", 1)):
            assert server.value(name, **here) == count, (chosen_by, name)


def test_tokens_are_told_once_a_second_and_at_the_end(server: Server) -> None:
    server.add("a", 1)
    server.step(first("a", 1))
    counts = []
    for _ in range(5):
        server.step(output("a", tokens=2), seconds=0.4)
        counts.append((server.value("generated_tokens_total"), server.count("inter_token_latency")))
    assert counts == [(1, 0), (1, 0), (7, 3), (7, 3), (7, 3)]
    server.step(output("a", reason=FinishReason.LENGTH), seconds=0.1)
    assert (server.value("generated_tokens_total"), server.count("inter_token_latency")) == (12, 6)
    assert server.value("inter_token_latency_seconds_sum") == pytest.approx(2.1)


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
    assert server.live() == {}
    assert server.value("requests_total") == server.count("time_to_first_token") == 6
    outcomes = {outcome: server.value("requests_total", outcome=outcome) for outcome in ("abort", "error")}
    assert outcomes == {"abort": 4, "error": 2}
    assert server.value("generated_tokens_total") == 12 and server.count("inter_token_latency") == 6
    assert server.count("e2e_request_latency") == server.count("request_decode_time") == 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (asyncio.CancelledError(), "disconnect"),
        (GeneratorExit(), "disconnect"),
        (RuntimeError("fault"), "error"),
        (None, "abort"),
    ],
)
def test_a_client_that_leaves_is_told_from_an_abort_and_a_fault(
    server: Server, error: BaseException | None, outcome: str
) -> None:
    """Upstream's ``generate`` aborts its request as it handles what ended it."""
    server.add("a", 15)
    try:
        if error is not None:
            raise error
    except BaseException:
        server.processor.abort_requests(["a"], internal=True)
    else:
        server.processor.abort_requests(["a"], internal=False)
    here = {"input_sequence_length": MIDDLE, "factor_set": "set1"}
    assert server.value("requests_total", outcome=outcome, **here) == server.value("requests_total") == 1
    assert server.live() == {}


def test_nothing_is_measured_where_upstream_measures_nothing(server: Server) -> None:
    """With ``--disable-log-stats`` upstream makes no statistics of a step and no manager of them."""
    unmeasured = WatchedOutputs(None, log_stats=False)
    client = SimpleNamespace(logger_manager=None, output_processor=unmeasured)
    assert start(client, engine_ladder(LADDER)) is None
    for processor in (server.processor, unmeasured):
        server.processor = processor
        server.add("b", 5)
        server.processor.process_outputs([first("b", 5), output("b", reason=FinishReason.STOP)], 101.0, None)
    assert not any(read(server.registry).values())


def test_the_engine_is_found_once_it_is_chosen(server: Server) -> None:
    """With several engines, the client chooses one after the output processor has the request, and forgets it early."""
    core = SimpleNamespace(core_engines=[b"0", b"1"], engine_ranks_managed=[0, 2], reqs_in_flight={})
    server.watch(engine_finder(core))

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
    for name in ("generated_tokens_total", "requests_total", "e2e_request_latency_seconds_count"):
        assert server.value(name, engine="2") == server.value(name) == 1, name
    # After the only token there is none to measure.
    assert server.count("request_decode_time") == server.count("request_time_per_output_token") == 0


def test_chunks_of_a_session_count_in_the_set_of_their_length(server: Server) -> None:
    """Chunks end at 4, 8, 12 and 16 tokens. One that reserves less than the last does not move the session down."""
    length = ("length", 50)
    for name, chunks, tokens in (
        ("length", (length, length, length, length), [6, 6, 0]),
        ("reserve", (("reserve", 9), ("reserve", 9), ("reserve", 1), ("reserve", 1)), [0, 12, 0]),
        ("more", (("reserve", 9), ("reserve", 40), ("reserve", 1), ("reserve", 1)), [0, 3, 9]),
        ("less", (("reserve", 40), length, length, length), [3, 6, 3]),
    ):
        before = [server.value("generated_tokens_total", factor_set=each) for each in LADDER.names]
        for policy, limit in chunks:
            server.add(name, 4, resumable=True, max_tokens=limit, rope_ladder_policy=policy)
            server.step(first(name, 4), output(name), output(name, reason=FinishReason.LENGTH), seconds=0.1)
        server.add(name, 4)
        after = [server.value("generated_tokens_total", factor_set=each) for each in LADDER.names]
        assert [end - start for start, end in zip(before, after, strict=True)] == tokens, name
    assert server.live() == {} and server.count("inter_token_latency") == 4 * 8
