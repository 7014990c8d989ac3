"""The checks of litellm, as a library."""

from functools import partial

import litellm
from checks import (
    CONCURRENT,
    ENDLESS,
    FORCED,
    KEY,
    LIMITED_KEY,
    LONG,
    MESSAGES,
    MODEL,
    SCHEMA,
    TOO_LONG,
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

litellm.suppress_debug_info = True
create = partial(
    litellm.completion,
    model=f"openai/{MODEL}",
    messages=MESSAGES,
    api_base=f"{URL}/v1",
    api_key=KEY,
    num_retries=0,
    max_retries=0,
)


class Town(BaseModel):
    model_config = ConfigDict(extra="forbid")
    is_capital: bool


@check("chat")
def chat() -> None:
    answer = create(max_tokens=8, temperature=0)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    assert 1 <= answer.usage.completion_tokens <= 8 and answer.usage.prompt_tokens > 0


@check("streamed chat")
def stream() -> None:
    whole = create(max_tokens=8, temperature=0).choices[0]
    chunks = [chunk.choices[0] for chunk in create(max_tokens=8, temperature=0, stream=True)]
    assert "".join(choice.delta.content or "" for choice in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason


@check("usage of a stream")
def stream_usage() -> None:
    *_, last = create(max_tokens=4, stream=True, stream_options={"include_usage": True})
    assert 1 <= last.usage.completion_tokens <= 4 and last.usage.prompt_tokens > 0


@check("text completions")
def completions() -> None:
    answer = litellm.text_completion(
        model=f"openai/{MODEL}", prompt="Paris is", max_tokens=4, api_base=f"{URL}/v1", api_key=KEY
    )
    assert 1 <= answer.usage.completion_tokens <= 4


@check("Responses API")
def responses() -> None:
    answer = litellm.responses(
        model=f"openai/{MODEL}", input="hi", max_output_tokens=16, api_base=f"{URL}/v1", api_key=KEY
    )
    assert 1 <= answer.usage.output_tokens <= 16


@check("log-probs")
def logprobs() -> None:
    answer = create(max_tokens=3, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens and all(len(token.top_logprobs) >= 2 for token in tokens)


@check("JSON schema")
def json_schema() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    city(create(max_tokens=100, response_format=schema).choices[0].message.content)


@check("`parse()`")
def parse() -> None:
    """litellm has none: it takes the class, and its caller reads the text."""
    answer = create(max_tokens=100, response_format=Town)
    Town.model_validate_json(answer.choices[0].message.content)


@check("JSON mode")
def json_mode() -> None:
    text = create(max_tokens=60, temperature=0, response_format={"type": "json_object"}).choices[0].message.content
    assert text.startswith("{") and "  " not in text and "\n" not in text, text


@check("forced tool call")
def forced_tool() -> None:
    for choice in (FORCED, "required"):
        calls = create(tools=[TOOL], tool_choice=choice, max_tokens=200).choices[0].message.tool_calls
        assert calls and calls[0].function.name == "weather" and calls[0].id
        weather(calls[0].function.arguments)


@check("streamed tool call")
def streamed_tool() -> None:
    chunks = list(create(tools=[TOOL], tool_choice=FORCED, max_tokens=200, stream=True))
    [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert call.function.name == "weather"
    weather(call.function.arguments)


@check("tools by the model's choice")
def auto_tool() -> None:
    message = create(tools=[TOOL], max_tokens=16).choices[0].message
    assert message.content or message.tool_calls
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    assert create(messages=history, tools=[TOOL], max_tokens=16).usage.completion_tokens >= 1


@check("models")
def models() -> None:
    names = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_base=f"{URL}/v1", api_key=KEY
    )
    assert [name.removeprefix("openai/") for name in names] == [MODEL], names


@check("factor set")
def factor_set() -> None:
    first = create(max_tokens=2)._hidden_params["additional_headers"]["llm_provider-x-rope-factor-set"]
    for request in (
        {"model": f"openai/{MODEL}@{first}"},
        {"extra_body": {"vllm_xargs": {"rope_factor_set": first}}},
    ):
        headers = create(**request, max_tokens=2)._hidden_params["additional_headers"]
        assert headers["llm_provider-x-rope-factor-set"] == first


@check("unknown model")
def unknown_model() -> None:
    error = raised(litellm.NotFoundError, lambda: create(model="openai/nosuch"))
    assert "nosuch" in error.message


@check("prompt too long")
def prompt_too_long() -> None:
    raised(litellm.ContextWindowExceededError, lambda: create(messages=TOO_LONG))


@check("wrong value")
def wrong_value() -> None:
    assert "temperature" in raised(litellm.BadRequestError, lambda: create(temperature=-1)).message


@check("wrong key")
def wrong_key() -> None:
    raised(litellm.AuthenticationError, lambda: create(api_key="wrong"))


@check("rate limit")
def rate_limit() -> None:
    limited = partial(create, api_key=LIMITED_KEY)
    streams = [limited(stream=True, **ENDLESS) for _ in range(CONCURRENT)]
    raised(litellm.RateLimitError, lambda: limited(max_tokens=1))
    for each in streams:
        each.completion_stream.close()
    wait_until_idle()


@check("request ID")
def request_id() -> None:
    assert create(max_tokens=1)._hidden_params["additional_headers"]["llm_provider-x-request-id"]


@check("cached tokens")
def cached_tokens() -> None:
    for _ in range(2):
        answer = create(messages=LONG, max_tokens=1)
    assert answer.usage.prompt_tokens_details.cached_tokens > 0, answer.usage


@check("timeout")
def timeout() -> None:
    raised(litellm.Timeout, lambda: create(timeout=0.5, **ENDLESS))
    wait_until_idle()


@check("cancelled stream")
def cancelled_stream() -> None:
    stream = create(stream=True, **ENDLESS)
    next(stream)
    stream.completion_stream.close()
    wait_until_idle()


if __name__ == "__main__":
    main()
