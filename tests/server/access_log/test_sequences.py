"""What upstream's own output processor is seen to do for the HTTP request in hand goes into its line."""

from dataclasses import replace
from typing import Any

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import PrefillStats

from ropeswitch.server.access_log.log import Names, fields
from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.length_metrics.bands import Bands
from ropeswitch.server.traces import attributes
from tests.server.length_metrics.processor import LADDER, Server, first, output

NAMES = Names(Bands(LADDER), LADDER.names, "m")


def line(record: RequestContext, **more: Any) -> dict[str, Any]:
    scope = {"method": "POST", "headers": []}
    return fields(scope, "/v1/completions", replace(record, came=0.0, **more), NAMES)


def started(prompt: int) -> tuple[Server, RequestContext]:
    """A server with one request in hand, which has had its first token."""
    server, record = Server(), RequestContext()
    token = current.set(record)
    server.add("a", prompt)
    current.reset(token)
    server.step(first("a", prompt))
    return server, record


def test_a_sequence_that_switches_twice() -> None:
    server, record = started(9)
    server.step(output("a"))
    for computed, tokens in ((10, 10), (20, 2)):
        statistics = PrefillStats()
        statistics.set(computed, 8, 0)
        server.step(output("a", tokens, prefill_stats=statistics))
    server.step(output("a", reason=FinishReason.LENGTH))
    told_line = line(record, status=200)
    assert (told_line["prompt_tokens"], told_line["generated_tokens"]) == (9, 15)
    assert (told_line["length_band"], told_line["factor_set"]) == ("1-10", "set0")
    assert (told_line["later_factor_sets"], told_line["switches"]) == (["set1", "set2"], 2)
    assert told_line["recomputed_tokens"] == 2 + 12
    assert told_line["outcome"] == "length" and 2 <= told_line["seconds_to_first_token"] < 4
    [track] = record.sequences
    assert attributes(track, NAMES.bands, NAMES.sets) == {
        "ropeswitch.length_band": "1-10",
        "ropeswitch.factor_set": "set0",
        "ropeswitch.ladder_policy": "length",
        "ropeswitch.factor_set_end": "set2",
        "ropeswitch.switches": 2,
        "ropeswitch.recomputed_tokens": 14,
    }


def test_a_sequence_that_is_aborted() -> None:
    server, record = started(9)
    server.processor.abort_requests(["a"], internal=True)
    assert line(record, status=200)["outcome"] == "abort"


def test_an_engine_that_dies() -> None:
    server, record = started(9)
    server.processor.propagate_error(RuntimeError("dead"))
    assert line(record, status=200)["outcome"] == "error"


def test_requests_of_others_are_not_mine() -> None:
    server, record = started(9)
    server.add("b", 15)
    assert len(record.sequences) == 1
