"""The checks of openai-python."""

from functools import partial

import openai
from checks import (
    ENDLESS,
    FORCED,
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
    cancelled,
    check,
    city,
    main,
    raised,
    rate_limited,
    wait_until_idle,
    weather,
)
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
create = partial(client.chat.completions.create, model=MODEL, messages=MESSAGES)
raw = partial(client.chat.completions.with_raw_response.create, messages=MESSAGES, max_tokens=2)


class Town(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    is_capital: bool


@check("chat")
def chat() -> None:
    answer = create(max_tokens=8, temperature=0)
    assert answer.model == MODEL and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    assert 1 <= answer.usage.completion_tokens <= 8


@check("streamed chat")
def stream() -> None:
    whole = create(max_tokens=8, temperature=0).choices[0]
    chunks = [chunk.choices[0] for chunk in create(max_tokens=8, temperature=0, stream=True)]
    assert "".join(choice.delta.content or "" for choice in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0) as events:
        assert "".join(event.delta for event in events if event.type == "content.delta") == whole.message.content


@check("usage of a stream")
def stream_usage() -> None:
    *_, last = create(max_tokens=4, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and 1 <= last.usage.completion_tokens <= 4 and last.usage.prompt_tokens > 0


@check("text completions")
def completions() -> None:
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, logprobs=2)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens >= 1


@check("Responses API")
def responses() -> None:
    respond = partial(client.responses.create, model=MODEL, input="hi", max_output_tokens=16)
    answer = respond()
    assert answer.output_text and 1 <= answer.usage.output_tokens <= 16
    kinds = [event.type for event in respond(stream=True)]
    assert "response.output_text.delta" in kinds and kinds[-1] in ("response.completed", "response.incomplete")


@check("log-probs")
def logprobs() -> None:
    answer = create(max_tokens=3, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(token.logprob <= 0 and len(token.top_logprobs) >= 2 for token in tokens)


@check("JSON schema")
def json_schema() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    city(create(max_tokens=100, response_format=form).choices[0].message.content)


@check("`parse()`")
def parse() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, max_tokens=200, response_format=Town)
    assert isinstance(answer.choices[0].message.parsed, Town), answer
    response = client.responses.parse(model=MODEL, input="hi", max_output_tokens=200, text_format=Town)
    assert isinstance(response.output_parsed, Town), response


@check("JSON mode")
def json_mode() -> None:
    """What the model writes need not end, but white space alone must not fill the answer."""
    answer = create(max_tokens=60, response_format={"type": "json_object"}, temperature=0)
    text = answer.choices[0].message.content
    assert text.startswith("{") and "  " not in text and "\n" not in text, text


@check("forced tool call")
def forced_tool() -> None:
    for choice in (FORCED, "required"):
        answer = create(tools=[TOOL], tool_choice=choice, max_tokens=200)
        calls = answer.choices[0].message.tool_calls
        assert calls and calls[0].function.name == "weather" and calls[0].id, answer
        weather(calls[0].function.arguments)


@check("streamed tool call")
def streamed_tool() -> None:
    chunks = list(create(tools=[TOOL], tool_choice=FORCED, max_tokens=200, stream=True))
    calls = [call.function for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert "".join(call.name or "" for call in calls) == "weather"
    weather("".join(call.arguments or "" for call in calls))


@check("tools by the model's choice")
def auto_tool() -> None:
    """The model need not call one, but the request with tools is served, and so is a tool's result."""
    answer = create(tools=[TOOL], max_tokens=16)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    answer = create(messages=[*MESSAGES, called, result], tools=[TOOL], max_tokens=16)
    assert answer.usage.completion_tokens >= 1


@check("models")
def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check("factor set")
def factor_set() -> None:
    first = raw(model=MODEL).headers["x-rope-factor-set"]
    by_field = {"vllm_xargs": {"rope_factor_set": first}}
    for response in (raw(model=f"{MODEL}@{first}"), raw(model=MODEL, extra_body=by_field)):
        assert response.headers["x-rope-factor-set"] == first


@check("unknown model")
def unknown_model() -> None:
    for call in (lambda: create(model="nosuch"), lambda: client.models.retrieve("nosuch")):
        error = raised(openai.NotFoundError, call)
        assert error.code == "model_not_found" and "nosuch" in error.message, error


@check("prompt too long")
def prompt_too_long() -> None:
    for request in ({"messages": TOO_LONG}, {"max_tokens": TOO_MANY_TOKENS}):
        error = raised(openai.BadRequestError, partial(create, **request))
        assert error.code == "context_length_exceeded" and error.type == "invalid_request_error", error


@check("wrong value")
def wrong_value() -> None:
    error = raised(openai.BadRequestError, lambda: create(temperature=-1))
    assert error.param == "temperature" and error.type == "invalid_request_error", error


@check("wrong key")
def wrong_key() -> None:
    error = raised(openai.AuthenticationError, client.with_options(api_key="wrong").models.list)
    assert error.code == "invalid_api_key", error


@check("rate limit")
def rate_limit() -> None:
    limited = client.with_options(api_key=LIMITED_KEY).chat.completions.create
    error = rate_limited(partial(limited, model=MODEL, messages=MESSAGES), openai.RateLimitError, ENDLESS)
    assert error.code == "rate_limit_exceeded" and error.response.headers["retry-after"], error


@check("request ID")
def request_id() -> None:
    assert create(max_tokens=1)._request_id
    assert raised(openai.NotFoundError, lambda: create(model="nosuch")).request_id
    named = create(max_tokens=1, extra_headers={"X-Request-Id": "mine"})
    assert named._request_id == "mine" and named.id.endswith("mine")


@check("cached tokens")
def cached_tokens() -> None:
    create(messages=LONG, max_tokens=1)
    assert create(messages=LONG, max_tokens=1).usage.prompt_tokens_details.cached_tokens > 0


@check("timeout")
def timeout() -> None:
    raised(openai.APITimeoutError, lambda: create(timeout=0.5, **ENDLESS))
    wait_until_idle()


@check("cancelled stream")
def cancelled_stream() -> None:
    cancelled(create, ENDLESS)


if __name__ == "__main__":
    main()
