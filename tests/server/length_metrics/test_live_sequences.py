"""`ropeswitch_live_requests` counts every sequence by band, set and state until it ends."""

from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest

from tests.server.length_metrics.ladders import read
from tests.server.length_metrics.processor import LONG, SHORT, Server, first, output, request, switch


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
    server.step(output("a", prefill_stats=switch(11)))
    assert live(server)[SHORT, "set1", "generating"] == live(server)[SHORT, "set0", "generating"] == 1
    server.step(output("a", reason=FinishReason.STOP), output("b", tokens=0, reason=FinishReason.ABORT))
    assert live(server) == {(SHORT, "set0", "waiting"): 2}
    server.processor.abort_requests(["c"], internal=True)
    assert live(server) == {(SHORT, "set0", "waiting"): 1}
    server.processor.propagate_error(RuntimeError("dead"))
    server.processor.abort_requests(["d"], internal=True)
    assert live(server) == {}


def test_every_answer_of_a_prompt_is_live_until_it_ends(server: Server) -> None:
    parent = ParentRequest(request("parent", 25))
    names = [parent.get_child_info(index)[0] for index in range(3)]
    for name in names:
        server.add(name, 25, parent=parent)
    assert live(server) == {(LONG, "set2", "waiting"): 3}
    server.step(*(first(name, 25) for name in names))
    server.step(output(names[0], reason=FinishReason.STOP))
    assert live(server) == {(LONG, "set2", "generating"): 2}
    server.processor.abort_requests([parent.request_id], internal=True)
    assert live(server) == {}


def test_a_session_is_live_until_its_last_chunk(server: Server) -> None:
    """The session ends with its last chunk if all others were answered, otherwise with that chunk's answer."""

    def chunk(name: str, more: bool) -> None:
        sent = request(name, 4)
        sent.resumable = more
        server.processor.add_request(sent, None, None, 0, RequestOutputCollector(RequestOutputKind.DELTA, name))

    for name in ("early", "late"):
        chunk(name, more=True)
    assert live(server) == {(SHORT, "set0", "waiting"): 2}
    chunk("early", more=False)
    for name in ("early", "late"):
        server.step(first(name, 4), output(name, reason=FinishReason.LENGTH))
    assert live(server) == {(SHORT, "set0", "generating"): 1}
    chunk("late", more=False)
    assert live(server) == {}
    assert server.value("generated_tokens_total") == 4 and server.count("inter_token_latency") == 2


def test_every_token_of_a_session_is_counted(server: Server) -> None:
    def chunk(more: bool) -> None:
        sent = request("a", 2)
        sent.resumable = more
        server.processor.add_request(sent, None, None, 0, RequestOutputCollector(RequestOutputKind.DELTA, "a"))

    for _ in range(4):
        chunk(more=True)
        server.step(first("a", 2), seconds=0.1)
        server.step(output("a"), seconds=0.1)
        server.step(output("a", reason=FinishReason.LENGTH), seconds=0.1)
    chunk(more=False)
    assert live(server) == {}
    assert server.value("generated_tokens_total") == 12 and server.count("inter_token_latency") == 8
