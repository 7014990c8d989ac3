"""Plausible wrong requests of clients, and what each answer must say: what is wrong, the value, what is allowed."""

from dataclasses import dataclass
from typing import Any

from tests.server.conftest import MODEL

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ASKED = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
RIGHT: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": ASKED, "max_tokens": 2},
    COMPLETIONS: {"model": MODEL, "prompt": "a", "max_tokens": 2},
    RESPONSES: {"model": MODEL, "input": "a", "max_output_tokens": 2},
    MESSAGES: {"model": MODEL, "messages": ASKED, "max_tokens": 2},
    "/v1/chat/completions/batch": {"model": MODEL, "messages": [ASKED], "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": ASKED},
    "/tokenize": {"model": MODEL, "prompt": "a"},
    "/detokenize": {"model": MODEL, "tokens": [5]},
    "/generative_scoring": {"model": MODEL, "query": "a", "items": ["b"], "label_token_ids": [5, 6]},
    "/invocations": {"model": MODEL, "messages": ASKED, "max_tokens": 2},
}


@dataclass(frozen=True)
class Mistake:
    """A wrong request: where its body is posted, and what its answer is; ``says`` are words of the message."""

    path: str
    body: Any
    says: tuple[str, ...]
    param: str | None
    status: int = 400
    code: str | None = None
    content_type: str = "application/json"
    method: str = "POST"


def wrong(path: str, says: str, param: str | None, code: str | None = None, **fields: Any) -> Mistake:
    """A right request to a route with some fields changed, or left out where their value is ``...``."""
    body = {name: value for name, value in (RIGHT[path] | fields).items() if value is not ...}
    return Mistake(path, body, tuple(says.split("|")), param, code=code)


def messages(role: object, content: object) -> list[dict[str, object]]:
    return [{"role": role, "content": content}]


LONG = "context_length_exceeded"
# Arguments are a text, which vLLM parses.
DEEP = {"name": "f", "arguments": "[" * 100_000}
CALL = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": DEEP}]}
OBJEKT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}
MISTAKES = (
    # Bodies.
    Mistake(CHAT, b'{"model": "tiny", "messages": [}', ("not valid JSON", "byte 31"), None),
    Mistake(CHAT, b"", ("body: Field required",), None),
    Mistake(CHAT, [1], ("body: Input should be a valid dictionary",), None),
    Mistake(CHAT, '{"messages": "é"}'.encode("latin-1"), ("not valid JSON", "utf-8"), None),
    Mistake(CHAT, b"{}", ("application/json",), None, content_type="text/plain"),
    Mistake(CHAT, b"[" * 100_000, ("not valid JSON",), None),
    Mistake(CHAT, b'{"model":' + b"[" * 300 + b"]" * 300 + b"}", ("at most 128",), "model"),
    # Messages and prompts.
    wrong(CHAT, "at least one message", None, messages=[]),
    wrong(CHAT, "messages[0].role: Field required", "messages[0].role", messages=[{"content": "a"}]),
    wrong(CHAT, "JSON that is nested too deeply", None, messages=[CALL]),
    wrong("/v1/chat/completions/batch", "JSON that is nested too deeply", None, messages=[ASKED, [CALL]]),
    wrong(RESPONSES, "JSON that is nested too deeply", None, input=[DEEP | {"type": "function_call", "call_id": "a"}]),
    wrong(COMPLETIONS, "prompt: Input should be a valid list; Input should be a valid string", "prompt", prompt=5),
    wrong(COMPLETIONS, "prompt[0]: Input should be greater than or equal to 0", "prompt[0]", prompt=[-1]),
    # Models and factor sets.
    Mistake(CHAT, RIGHT[CHAT] | {"model": "gpt-4o"}, ("gpt-4o", MODEL), "model", 404, "model_not_found"),
    Mistake(MESSAGES, RIGHT[MESSAGES] | {"model": "claude"}, ("claude", MODEL), None, 404),
    wrong(CHAT, "rope_factor_set and", "vllm_xargs.rope_factor_sets", vllm_xargs={"rope_factor_sets": "long"}),
    # Sampling.
    wrong(CHAT, "3.0|[0, 2]", "temperature", temperature=3),
    wrong(CHAT, "1000000000|1024|fewer", "max_tokens", LONG, max_tokens=10**9),
    wrong(COMPLETIONS, "whole number from", "top_k", top_k=2**64),
    # More than the server starts for one request.
    wrong(COMPLETIONS, "at most 2048 sequences|16777216|prompts in prompt", "n", prompt=["a"] * 1024, n=16384),
    wrong("/detokenize", "tokens: |at most 1024 token IDs|1025", "tokens", tokens=[5] * 1025),
    wrong(CHAT, "at most 524288 values", None, metadata=[[]] * 524_288),
    wrong(CHAT, "at most 2048 sequences|2049|--max-sequences-per-request", "n", n=2049, use_beam_search=True),
    wrong(CHAT, "at most 524288 bytes", "bad_words", bad_words=["ab " * 1000] * 200),
    wrong(CHAT, "stream=True", "stream_options", stream_options={"include_usage": True}),
    # Tools and structured output.
    wrong(CHAT, "objekt", None, response_format=OBJEKT),
    wrong(CHAT, "missing or has the wrong type", None, tools=[{}], tool_choice=TOOL),
    wrong("/invocations", "missing or has the wrong type", None, tools=[{}], tool_choice=TOOL),
    # Too long, on every route.
    wrong(CHAT, "1024 tokens|reduce", "input_tokens", LONG, messages=messages("user", "a" * 2000)),
    wrong(COMPLETIONS, "2000|1024 tokens|reduce", "input_tokens", LONG, prompt=[5] * 2000),
    wrong(COMPLETIONS, "1024 tokens|reduce", "input_tokens", LONG, prompt=["a", "x" * 3000], stream=True),
    wrong(COMPLETIONS, "max_tokens must be at least 1", "max_tokens", prompt=[5] * 1024),
    wrong(RESPONSES, "1024 tokens|reduce", "input_tokens", LONG, input="a" * 2000),
    wrong(MESSAGES, "1024 tokens|reduce", None, LONG, messages=messages("user", "a" * 2000)),
    # Anthropic's API.
    wrong(MESSAGES, "max_tokens: Field required", "max_tokens", max_tokens=...),
    wrong(MESSAGES, "1000000000|1024", None, LONG, max_tokens=10**9),
    wrong(MESSAGES, "Input should be 'user', 'assistant'", "messages[0].role", messages=messages("usr", "a")),
    wrong(MESSAGES, "-1.0", None, temperature=-1, stream=True),
    # Routes.
    Mistake("/v1/v1/chat/completions", RIGHT[CHAT], ("base URL",), None, 404),
    Mistake("/nothing/of/the/kind", {}, ("Not Found",), None, 404),
    Mistake(CHAT, None, ("Method Not Allowed",), None, 405, method="GET"),
)
