"""OpenAI's client and upstream's other routes against the patched engine, with the factor set named on each response.

``tests/clients`` has every feature of the clients; here is what depends on the sets.
"""

import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.server.conftest import MODEL
from tests.server.running import Server

SHORT = "a" * 20
LONG = "b" * 300
HEADER = "x-rope-factor-set"
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}


def user(content: str) -> Any:
    return [{"role": "user", "content": content}]


def test_every_prompt_s_set_is_named_in_order(client: OpenAI) -> None:
    """The limit itself is short and one past it long, whole or streamed; several choices are one prompt."""
    for prompt, expected in (
        (SHORT, "short"),
        (LONG, "long"),
        ([SHORT, LONG, SHORT], "short, long, short"),
        ([[5] * 256, [5] * 257], "short, long"),
    ):
        response = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=4, n=2)  # type: ignore[call-overload]
        assert response.headers[HEADER] == expected
        completion = response.parse()
        lengths = [len(each) for each in (prompt if isinstance(prompt, list) else [prompt])]
        assert completion.usage.prompt_tokens == sum(lengths)
        assert [choice.index for choice in completion.choices] == list(range(2 * len(lengths)))
        with client.completions.with_streaming_response.create(
            model=MODEL, prompt=prompt, max_tokens=3, stream=True
        ) as stream:
            assert stream.headers[HEADER] == expected
            assert "data: [DONE]" in list(stream.iter_lines())


def test_greedy_stream_and_completion_agree_across_the_switch(client: OpenAI) -> None:
    prompt = [7 + i % 90 for i in range(250)]
    whole = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0)
    stream = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0, stream=True)
    assert "".join(event.choices[0].text for event in stream) == whole.choices[0].text


def test_chats_and_responses_name_their_set(client: OpenAI) -> None:
    for content, expected in (("hi", "short"), (LONG, "long")):
        # A random model may end its answer at any token.
        ends: Any = {"max_tokens": 4, "extra_body": {"ignore_eos": True}}
        chat = client.chat.completions.with_raw_response.create(model=MODEL, messages=user(content), **ends)
        assert chat.headers[HEADER] == expected and chat.parse().choices[0].finish_reason == "length"
        response = client.responses.with_raw_response.create(model=MODEL, input=content, max_output_tokens=16)
        assert response.headers[HEADER] == expected and response.parse().model == MODEL
        with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=user(content), stream=True, **ends
        ) as stream:
            assert stream.headers[HEADER] == expected
    named = client.chat.completions.with_raw_response.create(model=f"{MODEL}@long", messages=user("hi"), max_tokens=2)
    assert named.headers[HEADER] == "long" and named.parse().model == MODEL


def test_wrong_models_raise_the_client_s_own_errors(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="unknown factor set 'nope'") as refused:
        client.chat.completions.create(model=f"{MODEL}@nope", messages=user("hi"))
    assert refused.value.param == "model"
    for ask in (
        lambda: client.chat.completions.create(model="other@long", messages=user("hi")),
        lambda: client.models.retrieve("none/such"),
    ):
        with pytest.raises(NotFoundError) as missing:
            ask()
        assert (missing.value.type, missing.value.code) == ("not_found_error", "model_not_found")
    assert [model.id for model in client.models.list()] == [MODEL]


def test_logprobs_and_echo(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt=SHORT, max_tokens=3, logprobs=2, echo=True)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert completion.choices[0].text.startswith(SHORT)
    assert len(logprobs.token_logprobs) == len(SHORT) + 3
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_structured_output_and_a_tool_across_the_switch(client: OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    ask = client.chat.completions.create
    chat = ask(model=MODEL, messages=user("h" * 240), max_tokens=60, response_format=schema)
    called = ask(model=MODEL, messages=user("h" * 240), tools=[tool], tool_choice=choice, max_tokens=200)
    calls = called.choices[0].message.tool_calls
    assert calls and calls[0].function.name == "weather"
    for text in (chat.choices[0].message.content, calls[0].function.arguments):
        assert json.loads(text or "")["city"] in ("Oslo", "Rome")


def test_other_routes_with_prompts(server: Server) -> None:
    chat = {"model": MODEL, "max_tokens": 3, "messages": user(LONG)}
    tokens = {"model": MODEL, "token_ids": [5] * 300, "sampling_params": {"max_tokens": 3}}
    for path, body in (("/v1/messages", chat), ("/inference/v1/generate", tokens)):
        assert server.post(path, body).sets == server.post(path, body | {"stream": True}).sets == "long"
    conversations = [user(SHORT), user(LONG)]
    assert server.post("/v1/chat/completions/batch", chat | {"messages": conversations}).sets == "short, long"
    beams = {"model": MODEL, "prompt": [SHORT, LONG], "max_tokens": 2, "n": 2, "use_beam_search": True}
    assert server.post("/v1/completions", beams).sets == "short, long"


def test_routes_without_prompts(server: Server) -> None:
    assert server.get("/health").status == 200
    tokens = server.post("/tokenize", {"model": MODEL, "prompt": SHORT})
    assert tokens.json["count"] == len(SHORT) and tokens.sets is None
    assert "vllm:generation_tokens_total" in server.get("/metrics").text
    assert server.get("/").text == server.get("/ui").text
    for path in ("/health/live", "/health/ready"):
        assert server.send("HEAD", path).status == 200
