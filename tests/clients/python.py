"""The checks of the Python clients, by client and by their words in the table of docs/clients.md.

openai and anthropic name most of their methods and errors alike, so most checks are for both.
"""

import json
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import anthropic
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.server.running import Server

MODEL = "longrope-mini"
KEY, LIMITED_KEY = "key-of-the-checks", "key-of-the-rate-limit"
# Requests in flight that a key may have.
CONCURRENT = 4
PROMPT_LIMIT = 2000
# Longer than one block of the prefix cache, which is 128 tokens on a CPU.
LONG = [{"role": "user", "content": "The grass is green. The sky is blue. The sun is yellow. " * 40}]
TOO_LONG = [{"role": "user", "content": "one two three " * PROMPT_LIMIT}]
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
CITY = {"enum": ["Oslo", "Rome"]}
GREEDY: dict[str, Any] = {"max_tokens": 8, "extra_body": {"temperature": 0}}


def closed(**properties: object) -> dict[str, object]:
    """The schema of an object that has these properties, all of them, and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


ARGUMENTS = closed(city=CITY, celsius={"type": "boolean"})
SCHEMA = closed(city=CITY, people={"type": "integer", "minimum": 1, "maximum": 9})


class Town(BaseModel):
    model_config = ConfigDict(extra="forbid")
    is_capital: bool


class OpenAI:
    """openai-python at a server: how its requests are made and its answers read."""

    errors: ModuleType = openai
    # Its answers do not end before they are cancelled.
    endless: ClassVar[dict[str, Any]] = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    schema: ClassVar[dict[str, Any]] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    }
    parsed = "response_format"
    tools: ClassVar[dict[str, Any]] = {
        "tools": [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": ARGUMENTS}}]
    }
    forced: tuple[Any, ...] = ({"type": "function", "function": {"name": "weather"}}, "required")
    wrong: tuple[dict[str, Any], str] = {"temperature": -1}, "temperature"

    def __init__(self, server: Server) -> None:
        self.server = server

    def client(self, key: str = KEY) -> Any:
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key=key, max_retries=0)

    def chats(self, key: str = KEY) -> Any:
        return self.client(key).chat.completions

    def create(self, key: str = KEY, **fields: Any) -> Any:
        return self.chats(key).create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 200} | fields)

    def raised(self, kind: str, key: str = KEY, **fields: Any) -> tuple[Any, dict[str, Any]]:
        """The error that a request raises, which must be of the library's class ``kind``, and the error in its body."""
        try:
            answer = self.create(key, **fields)
        except getattr(self.errors, kind) as error:
            body = getattr(error, "body", None) or {}
            return error, body.get("error", body)
        raise AssertionError(f"no {kind}, but {answer!r}")

    def streamed(self, **fields: Any) -> tuple[str, Any]:
        """The text of a stream, and its answer as the library puts it together."""
        usage = {"include_usage": True}
        with self.chats().stream(model=MODEL, messages=MESSAGES, stream_options=usage, **fields) as events:
            text = "".join(event.delta for event in events if event.type == "content.delta")
            return text, events.current_completion_snapshot

    def reading(self, answer: Any) -> tuple[str, str, int, int, int]:
        """Text, reason of the end, and tokens of prompt, answer and cache."""
        [choice], usage = answer.choices, answer.usage
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        return choice.message.content, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens, cached

    def called(self, answer: Any) -> list[tuple[str, str, Any]]:
        """The tool calls of an answer: name, ID and arguments."""
        calls = answer.choices[0].message.tool_calls or []
        return [(call.function.name, call.id, json.loads(call.function.arguments)) for call in calls]

    def result(self) -> list[dict[str, Any]]:
        """A tool call of the model, and its result."""
        function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
        called = {"id": "call_1", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ]

    def wait_until_idle(self) -> None:
        """Wait until the engine runs no request: what a client has given up is not computed to its end."""
        deadline = time.monotonic() + 60
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        while True:
            lines = self.server.get("/metrics", authorization=f"Bearer {KEY}").text.splitlines()
            if not any(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)):
                return
            assert time.monotonic() < deadline, "requests still run"
            time.sleep(0.1)


class Anthropic(OpenAI):
    """anthropic, where it differs."""

    errors = anthropic
    # This route has no `ignore_eos`, so a schema keeps the answer from ending.
    endless: ClassVar[dict[str, Any]] = {
        "max_tokens": 4000,
        "output_config": {
            "format": {"type": "json_schema", "schema": {"type": "array", "items": CITY, "minItems": 1000}}
        },
    }
    schema: ClassVar[dict[str, Any]] = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    parsed = "output_format"
    tools: ClassVar[dict[str, Any]] = {"tools": [{"name": "weather", "strict": True, "input_schema": ARGUMENTS}]}
    forced = ({"type": "tool", "name": "weather"}, {"type": "any"})
    wrong = {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"

    def client(self, key: str = KEY) -> Any:
        # Without a timeout of its own the client refuses a large `max_tokens` itself.
        return anthropic.Anthropic(base_url=self.server.url, api_key=key, max_retries=0, timeout=120)

    def chats(self, key: str = KEY) -> Any:
        return self.client(key).messages

    def streamed(self, **fields: Any) -> tuple[str, Any]:
        with self.chats().stream(model=MODEL, messages=MESSAGES, **fields) as events:
            return "".join(events.text_stream), events.get_final_message()

    def reading(self, answer: Any) -> tuple[str, str, int, int, int]:
        text, usage = "".join(block.text for block in answer.content if block.type == "text"), answer.usage
        return text, answer.stop_reason, usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens or 0

    def called(self, answer: Any) -> list[tuple[str, str, Any]]:
        return [(block.name, block.id, block.input) for block in answer.content if block.type == "tool_use"]

    def result(self) -> list[dict[str, Any]]:
        called = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
        return [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]


LIBRARIES: dict[str, type[OpenAI]] = {"openai-python": OpenAI, "anthropic": Anthropic}
CHECKS: dict[tuple[str, str], Callable[[Any], None]] = {}


def check(what: str, *clients: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function as the check ``what`` of these clients (default: both)."""

    def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
        CHECKS.update({(client, what): function for client in clients or LIBRARIES})
        return function

    return register


@check("chat")
def chat(library: OpenAI) -> None:
    answer = library.create(**GREEDY)
    text, reason, prompt, tokens, _ = library.reading(answer)
    assert answer.model == MODEL and text and prompt > 0 and 1 <= tokens <= 8
    assert reason in ("stop", "length", "end_turn", "max_tokens")
    streamed, final = library.streamed(**GREEDY)
    assert (streamed, library.reading(final)[:4]) == (text, (text, reason, prompt, tokens))


@check("JSON schema")
def json_schema(library: OpenAI) -> None:
    value = json.loads(library.reading(library.create(**library.schema))[0])
    assert value.keys() == {"city", "people"} and 1 <= value["people"] <= 9 and value["city"] in CITY["enum"], value


@check("`parse()`")
def parse(library: OpenAI) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, library.parsed: Town}
    answer = library.chats().parse(**asked)
    parsed = answer.parsed_output if isinstance(library, Anthropic) else answer.choices[0].message.parsed
    assert isinstance(parsed, Town), answer


def is_weather(library: OpenAI, answer: Any) -> None:
    [(name, call_id, arguments)] = library.called(answer)
    assert name == "weather" and call_id and arguments.keys() == {"city", "celsius"}, answer
    assert arguments["city"] in CITY["enum"] and isinstance(arguments["celsius"], bool), answer


@check("forced tool call")
def forced_tool(library: OpenAI) -> None:
    for choice in library.forced:
        is_weather(library, library.create(tool_choice=choice, **library.tools))
    is_weather(library, library.streamed(tool_choice=library.forced[0], max_tokens=200, **library.tools)[1])


@check("tools by the model's choice")
def auto_tool(library: OpenAI) -> None:
    """The model need not call one, but the request with tools is served, and so is a tool's result."""
    answer = library.create(max_tokens=16, **library.tools)
    assert library.reading(answer)[0] or library.called(answer)
    history = [*MESSAGES, *library.result()]
    assert library.reading(library.create(messages=history, max_tokens=16, **library.tools))[3] >= 1


@check("models")
def models(library: OpenAI) -> None:
    client = library.client()
    assert [model.id for model in client.models.list()] == [MODEL] == [client.models.retrieve(MODEL).id]


@check("factor set")
def factor_set(library: OpenAI) -> None:
    def used(model: str = MODEL, **more: Any) -> Any:
        asked = library.chats().with_raw_response.create(model=model, messages=MESSAGES, max_tokens=2, extra_body=more)
        return asked.headers["x-rope-factor-set"]

    for name in ("r2", "x512"):
        assert used(f"{MODEL}@{name}") == used(vllm_xargs={"rope_factor_set": name}) == name
    assert used() == "r1"


@check("unknown model")
def unknown_model(library: OpenAI) -> None:
    error, detail = library.raised("NotFoundError", model="nosuch")
    assert detail["type"] == "not_found_error" and "nosuch" in detail["message"] and error.request_id, detail
    with pytest.raises(library.errors.NotFoundError):
        library.client().models.retrieve("nosuch")


@check("prompt too long")
def prompt_too_long(library: OpenAI) -> None:
    for fields in ({"messages": TOO_LONG}, {"max_tokens": 100_000_000}):
        _, detail = library.raised("BadRequestError", **fields)
        assert (detail["type"], detail["code"]) == ("invalid_request_error", "context_length_exceeded"), detail


@check("wrong value")
def wrong_value(library: OpenAI) -> None:
    fields, param = library.wrong
    _, detail = library.raised("BadRequestError", **fields)
    assert (detail["type"], detail["param"]) == ("invalid_request_error", param), detail


@check("wrong key")
def wrong_key(library: OpenAI) -> None:
    _, detail = library.raised("AuthenticationError", key="wrong")
    assert detail["code"] == "invalid_api_key", detail


@check("rate limit")
def rate_limit(library: OpenAI) -> None:
    """A request beside as many streams as the key may have."""
    streams = [library.create(LIMITED_KEY, stream=True, **library.endless) for _ in range(CONCURRENT)]
    error, detail = library.raised("RateLimitError", key=LIMITED_KEY, max_tokens=1)
    assert detail["code"] == "rate_limit_exceeded" and error.response.headers["retry-after"], detail
    for each in streams:
        each.close()
    library.wait_until_idle()


@check("request ID")
def request_id(library: OpenAI) -> None:
    named = library.create(max_tokens=1, extra_headers={"X-Request-Id": "mine"})
    assert named._request_id == "mine" and named.id.endswith("mine")


@check("cached tokens")
def cached_tokens(library: OpenAI) -> None:
    library.create(messages=LONG, max_tokens=1)
    assert library.reading(library.create(messages=LONG, max_tokens=1))[4] > 0


@check("timeout")
def timeout(library: OpenAI) -> None:
    library.raised("APITimeoutError", timeout=0.5, **library.endless)
    library.wait_until_idle()


@check("cancelled stream")
def cancelled_stream(library: OpenAI) -> None:
    stream = library.create(stream=True, **library.endless)
    next(iter(stream))
    stream.close()
    library.wait_until_idle()


@check("text completions", "openai-python")
def text_completions(library: OpenAI) -> None:
    answer = library.client().completions.create(model=MODEL, prompt="Paris is", max_tokens=4, logprobs=2)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens >= 1


@check("Responses API", "openai-python")
def responses(library: OpenAI) -> None:
    api, asked = library.client().responses, {"model": MODEL, "input": "hi", "max_output_tokens": 16}
    answer = api.create(**asked)
    assert answer.output_text and 1 <= answer.usage.output_tokens <= 16
    kinds = [event.type for event in api.create(**asked, stream=True)]
    assert "response.output_text.delta" in kinds and kinds[-1] in ("response.completed", "response.incomplete")
    parsed = api.parse(**asked | {"max_output_tokens": 200}, text_format=Town)
    assert isinstance(parsed.output_parsed, Town), parsed


@check("log-probs", "openai-python")
def log_probs(library: OpenAI) -> None:
    chunks = list(library.create(max_tokens=3, logprobs=True, top_logprobs=2, stream=True))
    tokens = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert len(tokens) >= 1 and all(token.logprob <= 0 and len(token.top_logprobs) >= 2 for token in tokens)


@check("JSON mode", "openai-python")
def json_mode(library: OpenAI) -> None:
    """What the model writes need not end, but white space alone must not fill the answer."""
    answer = library.create(max_tokens=60, response_format={"type": "json_object"}, temperature=0)
    text = library.reading(answer)[0]
    assert text.startswith("{") and "  " not in text and "\n" not in text, text
