"""The checks of Anthropic's client for Python, which uses ``/v1/messages``."""

import json
from functools import partial
from typing import Any

from anthropic import Anthropic, APITimeoutError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError
from checks import (
    ARGUMENTS,
    KEY,
    LIMITED_KEY,
    LONG,
    MESSAGES,
    MODEL,
    SCHEMA,
    TOO_LONG,
    TOO_MANY_TOKENS,
    URL,
    cancelled,
    check,
    city,
    main,
    raised,
    rate_limited,
    wait_until_idle,
    weather,
)
from pydantic import BaseModel, ConfigDict

# Without a timeout of its own the client refuses a large `max_tokens` itself.
client = Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)
TOOLS = [{"name": "weather", "strict": True, "input_schema": ARGUMENTS}]
FORCED = {"type": "tool", "name": "weather"}
create = partial(client.messages.create, model=MODEL, messages=MESSAGES)
# This client has no argument for it.
GREEDY = {"temperature": 0}
# This route has no `ignore_eos`, so a schema keeps the answer from ending.
CITIES = {"type": "array", "items": {"enum": ["Oslo", "Rome"]}, "minItems": 1000}
ENDLESS = {"max_tokens": 4000, "output_config": {"format": {"type": "json_schema", "schema": CITIES}}}


class Town(BaseModel):
    model_config = ConfigDict(extra="forbid")
    is_capital: bool


@check("chat")
def chat() -> None:
    answer = create(max_tokens=8, system="Be short.", stop_sequences=["###"], extra_body=GREEDY)
    assert answer.model == MODEL and answer.role == "assistant" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens") and 1 <= answer.usage.output_tokens <= 8
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


@check("streamed chat")
def stream() -> None:
    whole = create(max_tokens=8, extra_body=GREEDY)
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=8, extra_body=GREEDY) as events:
        assert "".join(events.text_stream) == whole.content[0].text
        assert events.get_final_message().stop_reason == whole.stop_reason


@check("usage of a stream")
def stream_usage() -> None:
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=4) as events:
        usage = events.get_final_message().usage
    assert usage.input_tokens > 0 and 1 <= usage.output_tokens <= 4, usage


@check("JSON schema")
def json_schema() -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    city(create(max_tokens=100, output_config=form).content[0].text)


@check("`parse()`")
def parse() -> None:
    answer = client.messages.parse(model=MODEL, messages=MESSAGES, max_tokens=200, output_format=Town)
    assert isinstance(answer.parsed_output, Town), answer


def is_weather(answer: Any) -> None:
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and call.name == "weather" and call.id
    weather(json.dumps(call.input))


@check("forced tool call")
def forced_tool() -> None:
    for choice in (FORCED, {"type": "any"}):
        is_weather(create(tools=TOOLS, tool_choice=choice, max_tokens=200))


@check("streamed tool call")
def streamed_tool() -> None:
    asked = {"tools": TOOLS, "tool_choice": FORCED, "max_tokens": 200}
    with client.messages.stream(model=MODEL, messages=MESSAGES, **asked) as events:
        is_weather(events.get_final_message())


@check("tools by the model's choice")
def auto_tool() -> None:
    assert create(tools=TOOLS, max_tokens=16).content
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
    history = [*MESSAGES, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert create(messages=history, tools=TOOLS, max_tokens=16).usage.output_tokens >= 1


@check("models")
def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check("factor set")
def factor_set() -> None:
    raw = partial(client.messages.with_raw_response.create, messages=MESSAGES, max_tokens=2)
    first = raw(model=MODEL).headers["x-rope-factor-set"]
    by_field = {"vllm_xargs": {"rope_factor_set": first}}
    for response in (raw(model=f"{MODEL}@{first}"), raw(model=MODEL, extra_body=by_field)):
        assert response.headers["x-rope-factor-set"] == first


@check("unknown model")
def unknown_model() -> None:
    error = raised(NotFoundError, lambda: create(model="nosuch", max_tokens=1))
    assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body
    assert "nosuch" in error.body["error"]["message"]


@check("prompt too long")
def prompt_too_long() -> None:
    for request in ({"messages": TOO_LONG, "max_tokens": 8}, {"max_tokens": TOO_MANY_TOKENS}):
        error = raised(BadRequestError, partial(create, **request))
        assert error.body["error"]["type"] == "invalid_request_error", error.body


@check("wrong value")
def wrong_value() -> None:
    robot = [{"role": "robot", "content": "hi"}]
    error = raised(BadRequestError, lambda: create(messages=robot, max_tokens=1)).body["error"]
    assert error["type"] == "invalid_request_error" and "role" in error["message"]


@check("wrong key")
def wrong_key() -> None:
    wrong = client.with_options(api_key="wrong").messages.create
    error = raised(AuthenticationError, lambda: wrong(model=MODEL, messages=MESSAGES, max_tokens=1))
    assert error.body["error"]["type"] == "authentication_error", error.body


@check("rate limit")
def rate_limit() -> None:
    limited = client.with_options(api_key=LIMITED_KEY).messages.create
    error = rate_limited(partial(limited, model=MODEL, messages=MESSAGES), RateLimitError, ENDLESS)
    assert error.body["error"]["type"] == "rate_limit_error" and error.response.headers["retry-after"], error.body


@check("request ID")
def request_id() -> None:
    assert create(max_tokens=1)._request_id
    assert raised(NotFoundError, lambda: create(model="nosuch", max_tokens=1)).request_id


@check("cached tokens")
def cached_tokens() -> None:
    create(messages=LONG, max_tokens=1)
    assert create(messages=LONG, max_tokens=1).usage.cache_read_input_tokens > 0


@check("timeout")
def timeout() -> None:
    raised(APITimeoutError, lambda: create(timeout=0.5, **ENDLESS))
    wait_until_idle()


@check("cancelled stream")
def cancelled_stream() -> None:
    cancelled(create, ENDLESS)


if __name__ == "__main__":
    main()
