"""Converts errors to OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``, ``code`` a string or null.

vLLM's errors have six shapes: its own, like this one but with the HTTP status as ``code`` and other types;
``{"error": "text"}`` from its middlewares; ``{"detail": ...}`` from its router; ``{"type": "error", "error": {...}}`` from
the routes for Anthropic's clients; plain text; and an empty body. Messages of status 500 are dropped. Others are kept, or
rewritten if they show internals of vLLM (``upstream_messages.py``).
"""

import json
import re
from collections.abc import Container, Mapping
from http import HTTPStatus
from typing import Any

from ropeswitch.server.front.refusal import Refusal
from ropeswitch.server.upstream_messages import mended

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_KNOWN = {*_TYPES.values(), "invalid_request_error", "server_error"}
# Start of the event with which vLLM ends a stream on an error.
ERROR_EVENT = b'data: {"error"'
# Message of every fault of the server; details go to the log only.
FAULT = "The server failed to answer this request; the cause is in its log."
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}

# Start of the message of each prompt length check; no client text precedes it.
_TOO_LONG = re.compile(
    r"This model's maximum context length is \d+ tokens"
    r"|Input length \(\d+\) exceeds model's maximum\s+context length"
    r"|The (?:encoder|decoder) prompt \(length \d+\) (?:is|plus) .*longer than the maximum\s+model length"
    r"|The engine prompt length \d+ exceeds the max_model_len"
    r"|the prompt has \d+ tokens and a canvas read adds \d+, more than max_model_len"
    r"|prompt: a sequence of \d+ tokens is longer than the factor ladder's end"
    r"|\w+=\d+ cannot be greater than \w+=\d+",
    re.DOTALL,
)
_BUSY = re.compile(r"The engine (?:is currently busy|has reached its prefill token backlog limit)")
_NO_MODEL = re.compile(r"The model `.*` does not exist", re.DOTALL)
# Error code of these messages.
TOO_LONG = "context_length_exceeded"
# vLLM lowers an answer's limit to the tokens that the prompt leaves in the context, and then refuses a limit of 0.
NO_TOKEN_LEFT = b"max_tokens must be at least 1, got 0"
PROMPT_FILLS_CONTEXT = json.dumps(
    {
        "error": {
            "message": "The prompt alone fills this model's context and leaves no room for an answer. Shorten the prompt.",
            "param": "prompt",
            "code": TOO_LONG,
        }
    }
).encode()
# Names of a prompt in vLLM's errors and ours; each route has its own field.
_PROMPT = ("prompt", "input", "input_tokens", "input_text", None)
# Errors of Anthropic's requests name the first, as vLLM converts them to OpenAI's; their clients send the second.
LIMITS = ("max_completion_tokens", "max_tokens")
# Keys of the shapes above; others are passed on.
_SHAPES = ("error", "detail", "object", "type", "message", "param", "code")


def error_type(status: int) -> str:
    """Return OpenAI's error type for an HTTP status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def refusal_body(refusal: Refusal, *, anthropic: bool, prompt: str | None = None) -> bytes:
    """Return the response body of a refused request; ``prompt`` as in :func:`converted`."""
    error = {
        "message": refusal.message,
        "type": error_type(refusal.status),
        "param": prompt or refusal.param if refusal.code == TOO_LONG else refusal.param,
        "code": refusal.code,
    }
    return _json(error, {}, anthropic=anthropic)


def converted(
    status: int, body: bytes, *, anthropic: bool, prompt: str | None = None, fields: Container[str] = ()
) -> bytes:
    """Convert an error's body from any of these shapes to OpenAI's.

    Args:
        status: The response's HTTP status, at least 400.
        body: The response's body.
        anthropic: Whether to add the ``type`` that Anthropic's clients look for.
        prompt: The field of the request's body that holds the prompt; None if unknown.
        fields: The names of the fields of the request's body; empty if unknown.
    """
    try:
        value = json.loads(body)
    except ValueError:  # plain text, or nothing
        value = body.decode(errors="replace")
    rest = {name: each for name, each in value.items() if name not in _SHAPES} if isinstance(value, dict) else {}
    error = _error(status, value, prompt, fields)
    if anthropic:
        error |= {name: text.replace(*LIMITS) for name in ("message", "param") if (text := error[name]) is not None}
    return _json(error, rest, anthropic=anthropic)


def converted_event(event: bytes, fields: Container[str] = ()) -> bytes:
    """Convert a server-sent event ``data: {"error": ...}`` to OpenAI's shape; others stay. ``fields``: :func:`converted`."""
    if (status := event_status(event)) is None:
        return event
    value = json.loads(event.removeprefix(b"data: "))
    return b"data: " + json.dumps({"error": _error(status, value, None, fields)}).encode() + b"\n\n"


def event_status(event: bytes) -> int | None:
    """Return the status in a server-sent event ``data: {"error": ...}``; None for other events."""
    if not event.startswith(ERROR_EVENT):
        return None
    try:
        return int(json.loads(event.removeprefix(b"data: "))["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return None  # not one of vLLM's, which all have their status as code


def _error(status: int, value: Any, prompt: str | None, fields: Container[str]) -> dict[str, str | None]:
    given = _fields(value)
    message = given.get("message")
    if not isinstance(message, str) or not message:
        message = _phrase(status)
    if status == 500:
        message = FAULT
    kind, param, code = given.get("type"), given.get("param"), given.get("code")
    param = param if isinstance(param, str) else None
    if not isinstance(code, str):
        code = _CODES.get(status)
        if status == 400 and _TOO_LONG.match(message):
            code = TOO_LONG
        elif status == 404 and _NO_MODEL.match(message):
            code = "model_not_found"
        elif status == 503 and _BUSY.match(message):
            code = "server_overloaded"
    if status in (400, 422):
        message, field = mended(message, fields)
        param = param or field
    if code == TOO_LONG and prompt is not None and param in _PROMPT:
        param = prompt
    return {
        "message": message,
        "type": kind if kind in _KNOWN else error_type(status),
        "param": param,
        "code": code,
    }


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of an error's body under OpenAI's names."""
    if not isinstance(value, dict):
        return {"message": value}
    error = value.get("error", value)
    if not isinstance(error, dict):
        return {"message": error}
    if "detail" in error:
        detail = error["detail"]
        return {"message": detail if isinstance(detail, str) else json.dumps(detail)}
    return error


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"HTTP status {status}"


def _json(error: Mapping[str, str | None], rest: Mapping[str, Any], *, anthropic: bool) -> bytes:
    top = {"type": "error"} if anthropic else {}
    return json.dumps({**rest, **top, "error": error}).encode()
