"""The checks of langchain-openai."""

import json
from functools import partial

from checks import (
    CONCURRENT,
    ENDLESS,
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
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from openai import (
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    LengthFinishReasonError,
    NotFoundError,
    RateLimitError,
)
from pydantic import BaseModel, ConfigDict

connect = partial(ChatOpenAI, model=MODEL, base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
QUESTION = MESSAGES[0]["content"]


class Town(BaseModel):
    """A town."""

    model_config = ConfigDict(extra="forbid")
    is_capital: bool


@check("chat")
def chat() -> None:
    answer = connect(max_tokens=8, temperature=0).invoke(QUESTION)
    assert answer.content and answer.response_metadata["finish_reason"] in ("stop", "length")
    assert 1 <= answer.usage_metadata["output_tokens"] <= 8


@check("streamed chat")
def stream() -> None:
    model = connect(max_tokens=8, temperature=0)
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == model.invoke(QUESTION).content


@check("usage of a stream")
def stream_usage() -> None:
    chunks = list(connect(max_tokens=4, stream_usage=True).stream(QUESTION))
    [usage] = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["input_tokens"] > 0 and 1 <= usage["output_tokens"] <= 4


@check("text completions")
def completions() -> None:
    model = OpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, max_retries=0, max_tokens=4)
    assert isinstance(model.invoke("Paris is"), str)


@check("Responses API")
def responses() -> None:
    answer = connect(max_tokens=16, use_responses_api=True).invoke(QUESTION)
    assert 1 <= answer.usage_metadata["output_tokens"] <= 16


@check("log-probs")
def logprobs() -> None:
    answer = connect(max_tokens=3, logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert len(tokens) == answer.usage_metadata["output_tokens"]


@check("JSON schema")
def json_schema() -> None:
    schema = SCHEMA | {"title": "city", "description": "A city."}
    model = connect(max_tokens=100).with_structured_output(schema, method="json_schema", strict=True)
    city(json.dumps(model.invoke(QUESTION)))


@check("`parse()`")
def parse() -> None:
    for method in ("json_schema", "function_calling"):
        model = connect(max_tokens=200).with_structured_output(Town, method=method, strict=True)
        assert isinstance(model.invoke(QUESTION), Town)


@check("JSON mode")
def json_mode() -> None:
    """What the model writes need not end, and this client raises then, but white space alone must not fill the answer."""
    try:
        model = connect(max_tokens=60, temperature=0).bind(response_format={"type": "json_object"})
        text = model.invoke(QUESTION).content
    except LengthFinishReasonError as error:
        text = error.completion.choices[0].message.content
    assert text.startswith("{") and "  " not in text and "\n" not in text, text


@check("forced tool call")
def forced_tool() -> None:
    for choice in ("weather", "required"):
        [call] = connect(max_tokens=200).bind_tools([TOOL], tool_choice=choice).invoke(QUESTION).tool_calls
        assert call["name"] == "weather" and call["id"]
        weather(json.dumps(call["args"]))


@check("streamed tool call")
def streamed_tool() -> None:
    first, *rest = connect(max_tokens=200).bind_tools([TOOL], tool_choice="weather").stream(QUESTION)
    for chunk in rest:
        first += chunk
    [call] = first.tool_calls
    assert call["name"] == "weather"
    weather(json.dumps(call["args"]))


@check("tools by the model's choice")
def auto_tool() -> None:
    model = connect(max_tokens=16).bind_tools([TOOL])
    answer = model.invoke(QUESTION)
    assert answer.content or answer.tool_calls or answer.invalid_tool_calls
    call = {"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}
    history = [HumanMessage(QUESTION), AIMessage("", tool_calls=[call]), ToolMessage("rain", tool_call_id="call_1")]
    assert model.invoke(history).usage_metadata["output_tokens"] >= 1


@check("factor set")
def factor_set() -> None:
    def used(**arguments: object) -> str:
        model = connect(max_tokens=2, include_response_headers=True, **arguments)
        return model.invoke(QUESTION).response_metadata["headers"]["x-rope-factor-set"]

    first = used()
    assert used(model=f"{MODEL}@{first}") == first
    assert used(extra_body={"vllm_xargs": {"rope_factor_set": first}}) == first


@check("unknown model")
def unknown_model() -> None:
    assert raised(NotFoundError, lambda: connect(model="nosuch").invoke(QUESTION)).code == "model_not_found"


@check("prompt too long")
def prompt_too_long() -> None:
    for model, messages in ((connect(), TOO_LONG), (connect(max_tokens=TOO_MANY_TOKENS), MESSAGES)):
        error = raised(BadRequestError, partial(model.invoke, messages))
        assert error.code == "context_length_exceeded", error


@check("wrong value")
def wrong_value() -> None:
    assert raised(BadRequestError, lambda: connect(temperature=-1).invoke(QUESTION)).param == "temperature"


@check("wrong key")
def wrong_key() -> None:
    assert raised(AuthenticationError, lambda: connect(api_key="wrong").invoke(QUESTION)).code == "invalid_api_key"


@check("rate limit")
def rate_limit() -> None:
    endless = connect(api_key=LIMITED_KEY, **ENDLESS)
    streams = [endless.stream(QUESTION) for _ in range(CONCURRENT)]
    for each in streams:
        next(each)
    error = raised(RateLimitError, lambda: connect(api_key=LIMITED_KEY).invoke(QUESTION))
    assert error.code == "rate_limit_exceeded", error
    for each in streams:
        each.close()
    wait_until_idle()


@check("request ID")
def request_id() -> None:
    answer = connect(max_tokens=1, include_response_headers=True).invoke(QUESTION)
    assert answer.response_metadata["headers"]["x-request-id"]


@check("cached tokens")
def cached_tokens() -> None:
    for _ in range(2):
        answer = connect(max_tokens=1).invoke(LONG)
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0, answer.usage_metadata


@check("timeout")
def timeout() -> None:
    raised(APITimeoutError, lambda: connect(timeout=0.5, **ENDLESS).invoke(QUESTION))
    wait_until_idle()


@check("cancelled stream")
def cancelled_stream() -> None:
    stream = connect(**ENDLESS).stream(QUESTION)
    next(stream)
    stream.close()
    wait_until_idle()


if __name__ == "__main__":
    main()
