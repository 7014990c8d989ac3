"""The checks of Anthropic's client for Python, which uses ``/v1/messages``."""

import json
from functools import partial

from anthropic import (
    Anthropic,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RateLimitError,
)
from checks import (
    CONCURRENT,
    KEY,
    LIMITED_KEY,
    LONG,
    MESSAGES,
    MODEL,
    SCHEMA,
    TOO_LONG,
    TOO_MANY_TOKENS,
    TOOL,
    URL,
    check,
    city,
    main,
    raised,
    wait_until_idle,
    weather,
)
from pydantic import BaseModel, ConfigDict

# Without a timeout of its own the client refuses a large `max_tokens` itself.
client = Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)
TOOLS = [{"name": "weather", "strict": True, "input_schema": TOOL["function"]["parameters"]}]
FORCED = {"type": "tool", "name": "weather"}
# This client has no argument for it.
GREEDY = {"temperature": 0}


# This route has no `ignore_eos`, so a schema keeps the answer from ending.
ENDLESS = {
    "max_tokens": 4000,
    "output_config": {
        "format": {
            "type": "json_schema",
            "schema": {"type": "array", "items": {"enum": ["Oslo", "Rome"]}, "minItems": 1000},
        }
    },
}


class Town(BaseModel):
    model_config = ConfigDict(extra="forbid")
    is_capital: bool


@check("chat")
def chat() -> None:
    answer = client.messages.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, system="Be short.", stop_sequences=["###"], extra_body=GREEDY
    )
    assert answer.model == MODEL and answer.role == "assistant" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens") and 1 <= answer.usage.output_tokens <= 8
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


@check("streamed chat")
def stream() -> None:
    request = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "extra_body": GREEDY}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as events:
        assert "".join(events.text_stream) == whole.content[0].text
        assert events.get_final_message().stop_reason == whole.stop_reason


@check("usage of a stream")
def stream_usage() -> None:
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=4) as events:
        usage = events.get_final_message().usage
    assert usage.input_tokens > 0 and 1 <= usage.output_tokens <= 4, usage


@check("JSON schema")
def json_schema() -> None:
    answer = client.messages.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=100,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    city(answer.content[0].text)


@check("`parse()`")
def parse() -> None:
    answer = client.messages.parse(model=MODEL, messages=MESSAGES, max_tokens=200, output_format=Town)
    assert isinstance(answer.parsed_output, Town), answer


@check("forced tool call")
def forced_tool() -> None:
    for choice in (FORCED, {"type": "any"}):
        answer = client.messages.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=200)
        assert answer.stop_reason == "tool_use", answer
        [call] = [block for block in answer.content if block.type == "tool_use"]
        assert call.name == "weather" and call.id
        weather(json.dumps(call.input))


@check("streamed tool call")
def streamed_tool() -> None:
    with client.messages.stream(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=FORCED, max_tokens=200
    ) as events:
        answer = events.get_final_message()
    [call] = [block for block in answer.content if block.type == "tool_use"]
    weather(json.dumps(call.input))


@check("tools by the model's choice")
def auto_tool() -> None:
    answer = client.messages.create(model=MODEL, messages=MESSAGES, tools=TOOLS, max_tokens=16)
    assert answer.content
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}]},
    ]
    answer = client.messages.create(model=MODEL, messages=history, tools=TOOLS, max_tokens=16)
    assert answer.usage.output_tokens >= 1


@check("models")
def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check("factor set")
def factor_set() -> None:
    create = partial(client.messages.with_raw_response.create, messages=MESSAGES, max_tokens=2)
    first = create(model=MODEL).headers["x-rope-factor-set"]
    for request in (
        {"model": f"{MODEL}@{first}"},
        {"model": MODEL, "extra_body": {"vllm_xargs": {"rope_factor_set": first}}},
    ):
        assert create(**request).headers["x-rope-factor-set"] == first


@check("unknown model")
def unknown_model() -> None:
    error = raised(NotFoundError, lambda: client.messages.create(model="nosuch", messages=MESSAGES, max_tokens=1))
    assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body
    assert "nosuch" in error.body["error"]["message"]


@check("prompt too long")
def prompt_too_long() -> None:
    for request in ({"messages": TOO_LONG, "max_tokens": 8}, {"messages": MESSAGES, "max_tokens": TOO_MANY_TOKENS}):
        error = raised(BadRequestError, partial(client.messages.create, model=MODEL, **request))
        assert error.body["error"]["type"] == "invalid_request_error", error.body


@check("wrong value")
def wrong_value() -> None:
    error = raised(
        BadRequestError,
        lambda: client.messages.create(model=MODEL, messages=[{"role": "robot", "content": "hi"}], max_tokens=1),
    )
    assert error.body["error"]["type"] == "invalid_request_error" and "role" in error.body["error"]["message"]


@check("wrong key")
def wrong_key() -> None:
    create = client.with_options(api_key="wrong").messages.create
    error = raised(AuthenticationError, lambda: create(model=MODEL, messages=MESSAGES, max_tokens=1))
    assert error.body["error"]["type"] == "authentication_error", error.body


@check("rate limit")
def rate_limit() -> None:
    create = partial(client.with_options(api_key=LIMITED_KEY).messages.create, model=MODEL, messages=MESSAGES)
    streams = [create(stream=True, **ENDLESS) for _ in range(CONCURRENT)]
    error = raised(RateLimitError, lambda: create(max_tokens=1))
    assert error.body["error"]["type"] == "rate_limit_error" and error.response.headers["retry-after"], error.body
    for each in streams:
        each.close()
    wait_until_idle()


@check("request ID")
def request_id() -> None:
    assert client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=1)._request_id
    error = raised(NotFoundError, lambda: client.messages.create(model="nosuch", messages=MESSAGES, max_tokens=1))
    assert error.request_id


@check("cached tokens")
def cached_tokens() -> None:
    for _ in range(2):
        answer = client.messages.create(model=MODEL, messages=LONG, max_tokens=1)
    assert answer.usage.cache_read_input_tokens > 0, answer.usage


@check("timeout")
def timeout() -> None:
    hurried = client.with_options(timeout=0.5)
    raised(APITimeoutError, lambda: hurried.messages.create(model=MODEL, messages=MESSAGES, **ENDLESS))
    wait_until_idle()


@check("cancelled stream")
def cancelled_stream() -> None:
    stream = client.messages.create(model=MODEL, messages=MESSAGES, stream=True, **ENDLESS)
    next(iter(stream))
    stream.close()
    wait_until_idle()


if __name__ == "__main__":
    main()
