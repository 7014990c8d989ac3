"""The fields of a line in the access log, from what was noted of a request."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.model_patches.switch.placement import place
from ropeswitch.server.front.access_log import Names, fields
from ropeswitch.server.front.context import Entered, RequestContext, Sent
from ropeswitch.server.front.refusal import prompt_too_long
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.track import Track
from tests.server.length_metrics.ladders import ladder
from tests.server.placing import engine_ladder

LADDER = ladder(10, 20, 64)
NAMES = Names(Bands(LADDER), LADDER.names, "m")
SCOPE = {
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"api_key=sk-123",
    "headers": [(b"authorization", b"Bearer sk-123"), (b"x-request-id", b"mine")],
    "client": ("10.0.0.1", 1234),
}


def track(prompt: int = 5, tokens: int = 3, outcome: str | None = "stop", name: str = "a") -> Track:
    stats = SimpleNamespace(num_generation_tokens=tokens)
    made = Track(
        place(engine_ladder(LADDER), prompt),
        SimpleNamespace(external_req_id=name, prompt_len=prompt, lora_name=None, stats=stats),
    )
    made.first = made.band_set = (NAMES.bands.index(prompt), LADDER.index_for(prompt))
    made.outcome = outcome
    return made


def line(*tracks: Track, names: Names | None = NAMES, status: int | None = 200, **more: Any) -> dict[str, Any]:
    sent = Sent(status, left=more.pop("left", False), stopped=more.pop("stopped", False))
    entered = Entered(sequences=list(tracks), logged=more.pop("logged", {}))
    context = RequestContext(came=1_700_000_000.25, sent=sent, entered=entered, **more)
    return fields(SCOPE, "/v1/completions", context, 2.5, names)


def test_an_answer_that_switched() -> None:
    sequence = track(prompt=9, tokens=14, outcome="length")
    sequence.waited, sequence.later, sequence.recomputed = 0.125, [1, 2], 25
    assert line(sequence) == {
        "time": "2023-11-14T22:13:20.250Z",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "client": "10.0.0.1:1234",
        "key": None,
        "request_id": "mine",
        "model": "m",
        "prompt_tokens": 9,
        "generated_tokens": 14,
        "length_band": "1-10",
        "factor_set": "set0",
        "ladder_policy": "length",
        "later_factor_sets": ["set1", "set2"],
        "switches": 2,
        "recomputed_tokens": 25,
        "seconds_to_first_token": 0.125,
        "seconds": 2.5,
        "outcome": "length",
        "reason": None,
    }


def test_no_key_is_in_a_line() -> None:
    assert "sk-123" not in json.dumps(line(track()))


def test_a_request_without_prompts_has_no_fields_of_theirs() -> None:
    logged = line(names=None)
    assert list(logged) == "time method path status client key request_id seconds outcome reason".split()
    assert logged["outcome"] == "answered"


def test_several_answers_and_prompts() -> None:
    """Two answers to one prompt, and a longer prompt, which tells the band and the set."""
    logged = line(track(name="a"), track(name="a"), track(prompt=15, name="b", outcome="length"))
    assert (logged["prompt_tokens"], logged["generated_tokens"]) == (20, 9)
    assert (logged["length_band"], logged["factor_set"], logged["outcome"]) == ("11-20", "set1", "length")


@pytest.mark.parametrize(
    ("tracks", "more", "expected"),
    [
        ([], {"status": 400}, ("rejected", "invalid")),
        ([], {"status": 401}, ("rejected", "authentication")),
        ([], {"status": 503}, ("rejected", "unavailable")),
        ([], {"status": 500}, ("error", None)),
        ([], {"status": 400, "refusal": prompt_too_long(15, 10), "refused_tokens": 15}, ("rejected", "prompt_tokens")),
        ([], {"status": None, "left": True}, ("disconnect", None)),
        ([], {"status": 200, "left": True}, ("disconnect", None)),
        ([], {"status": None, "stopped": True}, ("abort", None)),
        ([track(outcome=None)], {"left": True}, ("disconnect", None)),
        ([track(outcome=None)], {"status": None}, ("disconnect", None)),
        # It had its last token, and did not wait for the end of the stream.
        ([track(outcome="stop")], {"left": True}, ("stop", None)),
        ([track(outcome="abort"), track()], {}, ("abort", None)),
        ([track(outcome="error")], {"status": 500}, ("error", None)),
        ([track(outcome="abort")], {"status": 503}, ("abort", None)),
        # One of a list of prompts was too long.
        ([track(outcome="disconnect")], {"status": 400}, ("rejected", "invalid")),
        # Answered while an engine still runs it, as in the background.
        ([track(outcome=None)], {}, ("answered", None)),
    ],
)
def test_outcomes(tracks: list[Track], more: dict[str, Any], expected: tuple[str, str | None]) -> None:
    logged = line(*tracks, **more)
    assert (logged["outcome"], logged["reason"]) == expected


def test_a_refused_prompt_tells_its_length_where_it_is_known() -> None:
    logged = line(status=400, refusal=prompt_too_long(15, 10), refused_tokens=15)
    assert (logged["prompt_tokens"], logged["length_band"], logged["factor_set"]) == (15, "11-20", None)
    assert line(status=401)["length_band"] is None


def test_nothing_is_made_up_where_nothing_is_measured() -> None:
    logged = line(names=Names(NAMES.bands, NAMES.sets, "m", measured=False))
    assert logged["generated_tokens"] is None and logged["switches"] is None and logged["outcome"] == "answered"


def test_ids_and_paths_are_cut() -> None:
    scope = SCOPE | {"headers": [(b"x-request-id", b"x" * 8000)]}
    logged = fields(scope, "/" * 8000, RequestContext(came=0.0), 0.0, None)
    assert len(logged["request_id"]) == len(logged["path"]) == 256
    scope["state"] = {"request_metadata": SimpleNamespace(request_id="cmpl-1")}
    assert fields(scope, "/", RequestContext(came=0.0), 0.0, None)["request_id"] == "cmpl-1"
