"""The set of each prompt on every route: by its length, or by ``MODEL@SET`` or ``vllm_xargs``, and wrongly."""

import json
from pathlib import Path
from typing import Any

import pytest
import vllm

from tests.exactness.reference import Reference
from tests.server.checkpoint import EOS, MAXIMUM, SETS, WINDOW, ladder_of
from tests.server.conftest import MODEL
from tests.server.observed import generate
from tests.server.running import Server

LONG = f"{MODEL}@long"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
# Every kind of generating route with a short prompt, and whether its response has a model.
ROUTES: dict[str, tuple[dict[str, Any], bool]] = {
    "/v1/completions": ({"prompt": "hi", "max_tokens": 3}, True),
    "/v1/chat/completions": ({"messages": MESSAGES, "max_tokens": 3}, True),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 16}, True),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 3}, True),
    "/v1/chat/completions/batch": ({"messages": [MESSAGES, MESSAGES], "max_tokens": 3}, True),
    "/invocations": ({"prompt": "hi", "max_tokens": 3}, True),
    "/generative_scoring": ({"query": "a", "items": ["b"], "label_token_ids": [5, 6]}, True),
    "/inference/v1/generate": ({"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}}, False),
}
# Those that stream and read vllm_xargs.
STREAMING = list(ROUTES)[:4]
BEAMS = {"max_tokens": 3, "n": 2, "use_beam_search": True, "temperature": 0}
# Ends an answer with its first token.
STOP = {"stop_token_ids": list(range(3, 259))}


def asking(value: Any = "long", policy: Any = None) -> dict[str, Any]:
    given = {"rope_factor_set": value, "rope_ladder_policy": policy}
    return {"model": MODEL, "vllm_xargs": {name: each for name, each in given.items() if each is not None}}


def test_every_prompt_s_set_is_named_in_order(server: Server) -> None:
    """The limit itself is short and one past it long, whole or streamed; several choices are one prompt."""
    for prompt, expected in (
        ("a" * 20, "short"),
        ("b" * 300, "long"),
        (["a" * 20, "b" * 300, "a" * 20], "short, long, short"),
        ([[5] * WINDOW, [5] * (WINDOW + 1)], "short, long"),
    ):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "n": 2}
        answer, stream = server.post("/v1/completions", body), server.post("/v1/completions", body | {"stream": True})
        assert answer.sets == stream.sets == expected and "data: [DONE]" in stream.text
        lengths = [len(each) for each in (prompt if isinstance(prompt, list) else [prompt])]
        assert answer.json["usage"]["prompt_tokens"] == sum(lengths)
        assert [choice["index"] for choice in answer.json["choices"]] == list(range(2 * len(lengths)))


def test_every_route_names_the_set_of_its_length(server: Server) -> None:
    chat = ROUTES["/v1/messages"][0] | {"model": MODEL, "messages": [{"role": "user", "content": "b" * 300}]}
    tokens = ROUTES["/inference/v1/generate"][0] | {"model": MODEL, "token_ids": [5] * 300}
    for path, body in (("/v1/chat/completions", chat), ("/v1/messages", chat), ("/inference/v1/generate", tokens)):
        assert server.post(path, body).sets == server.post(path, body | {"stream": True}).sets == "long"
    assert (
        server.post("/v1/responses", ROUTES["/v1/responses"][0] | {"model": MODEL, "input": "b" * 300}).sets == "long"
    )
    batch = chat | {"messages": [MESSAGES, chat["messages"]]}
    assert server.post("/v1/chat/completions/batch", batch).sets == "short, long"
    assert server.post("/v1/completions", {"model": MODEL, "prompt": ["a", "b" * 300]} | BEAMS).sets == "short, long"


@pytest.mark.parametrize("path", ROUTES)
def test_a_model_with_a_set_is_served_in_it(server: Server, path: str) -> None:
    body, has_model = ROUTES[path]
    # In no context but its own.
    for model, name in ((LONG, "long"), (f"{MODEL}@short", "short"), (LONG, "long"), (MODEL, "short")):
        answer = server.post(path, body | {"model": model})
        assert answer.status == 200, answer.text
        assert set((answer.sets or "").split(", ")) == {name}
        assert not has_model or answer.json["model"] == MODEL


def test_routes_without_a_prompt(server: Server) -> None:
    for path, body in (("/tokenize", {"prompt": "hi"}), ("/v1/messages/count_tokens", {"messages": MESSAGES})):
        assert server.post(path, body | {"model": LONG}).status == 200
        assert server.post(path, body | {"model": f"{MODEL}@nope"}).status == 400
    assert [model["id"] for model in server.get("/v1/models").json["data"]] == [MODEL]
    missing = server.get("/v1/models/none/such")
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")
    assert server.get("/").text == server.get("/ui").text
    for path in ("/health/live", "/health/ready"):
        assert server.send("HEAD", path).status == 200


@pytest.mark.parametrize("path", STREAMING)
def test_a_stream_is_of_the_model_in_the_set(server: Server, path: str) -> None:
    body = ROUTES[path][0] | {"stream": True}
    # A stream of the Responses API begins before its prompt is placed.
    expected = (200, None if path.endswith("responses") else "long")
    by_field, by_model = server.post(path, body | asking()), server.post(path, body | {"model": LONG})
    assert (by_field.status, by_field.sets) == (by_model.status, by_model.sets) == expected
    events = [json.loads(line[6:]) for line in by_model.text.splitlines() if line.startswith("data: {")]
    holders = [event.get("response") or event.get("message") or event for event in events]
    assert {holder["model"] for holder in holders if "model" in holder} == {MODEL}


# What a body asks for, the parameter that the error names, and words of its message.
WRONG: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"model": f"{MODEL}@nope"}, "model", "unknown factor set 'nope'|known sets: 'short', 'long'"),
    (asking("short") | {"model": LONG}, "model", "leave one of them out"),
    (asking("nope"), "vllm_xargs.rope_factor_set", "'short', 'long'"),
    (asking(3), "vllm_xargs.rope_factor_set", "3"),
    (asking(None, "longest"), "vllm_xargs.rope_ladder_policy", "'longest' must be one of length, reserve"),
    (asking("long", "reserve"), "vllm_xargs.rope_ladder_policy", "cannot be combined with"),
)


@pytest.mark.parametrize("path", ROUTES)
def test_a_wrong_set_or_policy_is_a_400_that_names_the_field(server: Server, path: str) -> None:
    body = ROUTES[path][0]
    # Those that do not stream have fewer ways to go wrong, and one reads no vllm_xargs.
    for asked, field, says in WRONG if path in STREAMING else WRONG[: 1 if path.startswith("/inference") else 2]:
        streamed = path in STREAMING and not field.endswith("policy")
        for stream in ({}, {"stream": True}) if streamed else ({},):
            answer = server.post(path, body | asked | stream)
            assert (answer.status, answer.sets) == (400, None), (asked, answer.text)
            error = answer.json["error"]
            assert all(part in error["message"] for part in says.split("|")), (asked, error)
            # Anthropic's error shape has no field.
            if path != "/v1/messages":
                assert (error["param"], error["type"]) == (field, "invalid_request_error"), (asked, error)
    # vLLM takes the model of /invocations from a header and ignores the body's, unless that names a set.
    headers = {"x-amzn-sagemaker-adapter-identifier": "other@long"} if path == "/invocations" else {}
    assert server.post(path, body | {"model": "other@long"}, **headers).status == 404


def test_what_a_route_would_ignore_is_refused(server: Server) -> None:
    for asked, field in ((asking(), "rope_factor_set"), (asking(None, "reserve"), "rope_ladder_policy")):
        for path, more in (("/v1/completions", BEAMS), ("/generative_scoring", {})):
            answer = server.post(path, ROUTES[path][0] | more | asked)
            assert (answer.status, answer.json["error"]["param"]) == (400, f"vllm_xargs.{field}"), answer.text


def best_beams(reference: Reference, prompt: list[int], width: int, steps: int) -> list[list[int]]:
    """The best continuations of a prompt, best first, each step computed from scratch."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        candidates = []
        for score, tokens in beams:
            values, ids = reference.log_probs([*prompt, *tokens])[-1].topk(2 * width)
            candidates += [
                (score + value, [*tokens, token])
                for value, token in zip(values.tolist(), ids.tolist(), strict=True)
                if token != EOS
            ]
        beams = sorted(candidates, key=lambda each: each[0], reverse=True)[:width]
    return [tokens for _, tokens in beams]


def test_a_forced_set_rotates_as_in_hugging_face(server: Server, checkpoint: Path) -> None:
    """By the field, and by the name in a beam search, which ``vllm_xargs`` cannot force."""
    prompt = [5 + i % 90 for i in range(40)]
    found = {}
    for name in SETS:
        reference = Reference.load(checkpoint, ladder_of(checkpoint), name)
        answer = generate(server, 0, 8, prompt=prompt, logprobs=1, return_token_ids=True, **asking(name))
        [choice] = answer.json["choices"]
        reference.check(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])
        body = {"model": f"{MODEL}@{name}", "prompt": prompt, "return_token_ids": True} | BEAMS
        answer = server.post("/v1/completions", body)
        assert (answer.status, answer.sets) == (200, name), answer.text
        found[name] = [choice["token_ids"] for choice in answer.json["choices"]]
        assert found[name] == best_beams(reference, prompt, width=2, steps=3)
    assert found["short"] != found["long"]
    # Also where the set is shorter than the prompt.
    answer = server.post("/v1/completions", {"prompt": "b" * 300, "max_tokens": 3} | asking("short"))
    assert (answer.status, answer.sets) == (200, "short")


@pytest.mark.parametrize("path", STREAMING)
def test_a_request_can_reserve_the_set_of_its_limit(server: Server, path: str) -> None:
    """Its answer ends with the first token, where the route can say so; the set is that of the limit all the same."""
    limits: list[tuple[int | None, str]] = [(3, "short"), (WINDOW, "long")]
    if path in ("/v1/chat/completions", "/v1/responses"):
        # vLLM's handlers fill in the end of the context where nobody named a limit.
        limits.append((None, "short"))
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    for limit, expected in limits:
        answer = server.post(path, ROUTES[path][0] | asking(None, "reserve") | STOP | {name: limit})
        assert (answer.status, answer.sets) == (200, expected), answer.text


def test_rope_tells_the_ladder(server: Server) -> None:
    rope = server.get("/v1/rope").json
    assert [(each["name"], each["max_length"], each["source"]) for each in rope["sets"]] == [
        ("short", WINDOW, "short_factor of the config"),
        ("long", MAXIMUM, "long_factor of the config"),
    ]
    assert rope["sets"][0]["scale"] == pytest.approx(1.1180339887)
    assert (rope["theta"], rope["rotary_dim"], rope["angles"], rope["max_model_len"]) == (10000, 32, "exact", MAXIMUM)
    assert vllm.__version__.startswith(rope["vllm_version"])
