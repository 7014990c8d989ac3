"""Our own additions: ``/v1/rope``, a set that a request asks for, and the errors for what cannot be served."""

from typing import Any

import pytest
import vllm

from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.switch.placement import CHOSEN_BY
from ropeswitch.server.patches import SERVER_PATCHES
from tests.server.checkpoint import MAXIMUM, WINDOW
from tests.server.conftest import MODEL
from tests.server.metrics.ladders import total
from tests.server.running import Server
from tests.server.test_length_metrics import scrape

SHORT = "a" * 20
LONG = "b" * 300
MESSAGES = [{"role": "user", "content": "hi"}]
# Every route that reads vllm_xargs, with a request for a short prompt.
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": SHORT, "max_tokens": 3},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
}


def asking(value: Any) -> dict[str, Any]:
    return {"model": MODEL, "vllm_xargs": {"rope_factor_set": value}}


def test_rope_tells_the_ladder_and_the_patches(server: Server) -> None:
    rope = server.get("/v1/rope").json
    assert [(each["name"], each["max_length"], each["num_factors"]) for each in rope["sets"]] == [
        ("short", WINDOW, 16),
        ("long", MAXIMUM, 16),
    ]
    assert rope["sets"][0]["start_tokens"] == 0 and rope["sets"][0]["scale"] == pytest.approx(1.1180339887)
    assert [(each["factor"], each["source"]) for each in rope["sets"]] == [
        (None, "short_factor of the config"),
        (None, "long_factor of the config"),
    ]
    assert (rope["theta"], rope["rotary_dim"], rope["angles"], rope["max_model_len"]) == (10000, 32, "exact", MAXIMUM)
    targets = [patch["target"] for patch in rope["patches"]]
    assert targets[-len(SERVER_PATCHES) :] == [patch.target for patch in SERVER_PATCHES]
    assert {patch.target for patch in PATCHES} >= set(targets[: -len(SERVER_PATCHES)]) != set()
    assert vllm.__version__.startswith(rope["vllm_version"])
    schema = server.get("/openapi.json").json
    assert "/v1/rope" in schema["paths"] and "RopeInfo" in schema["components"]["schemas"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_can_force_a_set(server: Server, path: str, stream: bool) -> None:
    answer = server.post(path, ROUTES[path] | asking("long") | {"stream": stream})
    # A stream of the Responses API begins before its prompt is placed.
    sets = None if stream and path == "/v1/responses" else "long"
    assert (answer.status, answer.sets) == (200, sets), answer.text


def test_the_forced_set_is_the_one_that_rotates(server: Server) -> None:
    greedy = {"prompt": [5 + i % 200 for i in range(60)], "max_tokens": 8, "temperature": 0, "logprobs": 1}
    logprobs = [
        server.post("/v1/completions", greedy | asking(name)).json["choices"][0]["logprobs"]["token_logprobs"]
        for name in ("short", "long", "short")
    ]
    by_length = server.post("/v1/completions", greedy | {"model": MODEL}).json["choices"][0]["logprobs"]
    assert by_length["token_logprobs"] == pytest.approx(logprobs[0], abs=1e-3)
    assert logprobs[2] == pytest.approx(logprobs[0], abs=1e-3)
    assert logprobs[1] != pytest.approx(logprobs[0], abs=1e-3)


def test_a_set_shorter_than_the_prompt_may_be_forced(server: Server) -> None:
    answer = server.post("/v1/completions", {"prompt": LONG, "max_tokens": 3} | asking("short"))
    assert (answer.status, answer.sets) == (200, "short")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", ["nope", 3])
def test_an_unknown_set_is_a_400(server: Server, path: str, stream: bool, value: Any) -> None:
    answer = server.post(path, ROUTES[path] | asking(value) | {"stream": stream})
    error = answer.json["error"]
    assert answer.status == 400 and answer.sets is None
    assert "vllm_xargs.rope_factor_set" in error["message"] and repr(value) in error["message"]
    if value == "nope":
        assert "'short', 'long'" in error["message"]
    # Anthropic's error shape has no field.
    if path != "/v1/messages":
        assert (error["param"], error["type"]) == ("vllm_xargs.rope_factor_set", "invalid_request_error")


def test_a_set_is_refused_where_it_could_not_be_had(server: Server) -> None:
    beams = {"prompt": SHORT, "max_tokens": 2, "n": 2, "use_beam_search": True}
    scores = {"query": "a", "items": ["b"], "label_token_ids": [5, 6]}
    for path, body in (("/v1/completions", beams), ("/generative_scoring", scores)):
        answer = server.post(path, body | asking("long"))
        assert answer.status == 400, answer.text
        assert answer.json["error"]["param"] == "vllm_xargs.rope_factor_set"


# Ends an answer with its first token.
STOP = {"stop_token_ids": list(range(3, 259))}
LIMITS = {"/v1/responses": "max_output_tokens"}


def reserving(path: str, limit: int | None) -> dict[str, Any]:
    """A request that reserves, with an output limit or, where the route allows it, without one."""
    body = ROUTES[path] | {"model": MODEL, "vllm_xargs": {"rope_ladder_policy": "reserve"}}
    return body | {LIMITS.get(path, "max_tokens"): limit}


def by_policy(server: Server) -> dict[str, float]:
    sums = scrape(server)
    return {policy: total(sums, "ropeswitch_ladder_policy_requests_total", policy=policy) for policy in CHOSEN_BY}


@pytest.mark.parametrize("path", ROUTES)
def test_a_request_can_reserve_the_set_of_its_limit(server: Server, path: str) -> None:
    """Its answer ends with the first token, where the route can say so; the set is that of the limit all the same."""
    for limit, expected in ((3, "short"), (WINDOW, "long")):
        answer = server.post(path, reserving(path, limit) | STOP)
        assert (answer.status, answer.sets) == (200, expected), answer.text


def test_a_limit_at_the_end_of_the_context_reserves_where_somebody_named_it(server: Server) -> None:
    """vLLM's handlers fill in the same number where nobody did."""
    prompt = {"prompt": [7] * 20}
    named = server.post("/v1/completions", reserving("/v1/completions", MAXIMUM - 20) | prompt | STOP)
    assert (named.status, named.sets) == (200, "long"), named.text
    for path in ("/v1/chat/completions", "/v1/responses"):
        unnamed = server.post(path, reserving(path, None) | STOP)
        assert (unnamed.status, unnamed.sets) == (200, "short"), unnamed.text


def test_metrics_tell_the_policies_apart(server: Server) -> None:
    before = by_policy(server)
    for body in (
        reserving("/v1/completions", WINDOW),
        ROUTES["/v1/completions"] | asking("long"),
        ROUTES["/v1/completions"],
    ):
        assert server.post("/v1/completions", body | {"model": MODEL} | STOP).status == 200
    assert {name: count - before[name] for name, count in by_policy(server).items()} == dict.fromkeys(CHOSEN_BY, 1)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("xargs", "reason"),
    [
        ({"rope_ladder_policy": "longest"}, "'longest' must be one of length, reserve"),
        ({"rope_ladder_policy": 3}, "3 must be one of length, reserve"),
        ({"rope_ladder_policy": "reserve", "rope_factor_set": "long"}, "cannot be combined with"),
    ],
)
def test_a_wrong_policy_is_a_400(server: Server, path: str, xargs: dict[str, Any], reason: str) -> None:
    answer = server.post(path, ROUTES[path] | {"model": MODEL, "vllm_xargs": xargs})
    error = answer.json["error"]
    assert (answer.status, answer.sets) == (400, None)
    assert error["message"].startswith("vllm_xargs.rope_ladder_policy: ") and reason in error["message"]
    if path != "/v1/messages":
        assert (error["param"], error["type"]) == ("vllm_xargs.rope_ladder_policy", "invalid_request_error")


def test_a_policy_is_refused_where_it_would_be_ignored(server: Server) -> None:
    beams = {"prompt": SHORT, "max_tokens": 2, "n": 2, "use_beam_search": True}
    scores = {"query": "a", "items": ["b"], "label_token_ids": [5, 6]}
    for path, body in (("/v1/completions", beams), ("/generative_scoring", scores)):
        answer = server.post(path, body | {"model": MODEL, "vllm_xargs": {"rope_ladder_policy": "reserve"}})
        assert answer.status == 400, answer.text
        assert answer.json["error"]["param"] == "vllm_xargs.rope_ladder_policy"


@pytest.mark.parametrize("prompt", ["x" * (MAXIMUM + 1), [5] * (MAXIMUM + 1), [SHORT, "x" * 3000]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_limit_is_a_400(server: Server, prompt: Any, stream: bool) -> None:
    for more in ({}, {"max_tokens": 2}):
        answer = server.post("/v1/completions", {"model": MODEL, "prompt": prompt, "stream": stream} | more)
        error = answer.json["error"]
        expected = (400, "context_length_exceeded", "invalid_request_error")
        assert (answer.status, error["code"], error["type"]) == expected, answer.text
        assert str(MAXIMUM) in error["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": []},
        {"prompt": [10**6]},
        {"structured_outputs": {"regex": "("}},
        {"logprobs": 100},
    ],
    ids=["no tokens", "out of the vocabulary", "bad regex", "too many logprobs"],
)
def test_an_error_names_no_set(server: Server, changes: dict[str, Any]) -> None:
    answer = server.post("/v1/completions", {"model": MODEL, "prompt": SHORT, "max_tokens": 2} | changes)
    assert (answer.status, answer.sets) == (400, None), answer.text


@pytest.mark.parametrize(
    "body", [b"{broken rope_factor_set", b'["rope_factor_set"]', b'{"vllm_xargs": ["rope_factor_set"]}']
)
def test_a_body_that_is_no_request_is_a_400(server: Server, body: bytes) -> None:
    assert server.post("/v1/completions", body).status == 400


def test_the_server_is_well_after_all_that(server: Server) -> None:
    answer = server.post("/v1/completions", {"model": MODEL, "prompt": SHORT, "max_tokens": 2})
    assert (answer.status, answer.sets) == (200, "short")
