"""Errors in the shape of OpenAI's API: ``{"error": {"message", "type", "param", "code"}}``, with ``code`` a string or null.

vLLM answers in six shapes: its own, like this one but with the HTTP status as ``code`` and types of its own;
``{"error": "text"}`` of its middlewares; ``{"detail": ...}`` of its router; ``{"type": "error", "error": {...}}`` of the
routes for Anthropic's clients; plain text; and nothing. Messages are kept in all of them, but for those of a status 500.
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ropeswitch.server.front.refusal import Refusal

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_KNOWN = {*_TYPES.values(), "invalid_request_error", "server_error"}
# How vLLM begins the event that ends a stream with an error.
ERROR_EVENT = b'data: {"error"'
# What is said of a fault: how the server failed is for its log, not for a client.
FAULT = "The server failed to answer this request; its log says why"
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}

# How each check of a prompt's length begins its message; nothing that a client sends stands before it.
_TOO_LONG = re.compile(
    r"This model's maximum context length is \d+ tokens"
    r"|Input length \(\d+\) exceeds model's maximum\s+context length"
    r"|The (?:encoder|decoder) prompt \(length \d+\) (?:is|plus) .*longer than the maximum\s+model length"
    r"|The engine prompt length \d+ exceeds the max_model_len"
    r"|the prompt has \d+ tokens and a canvas read adds \d+, more than max_model_len"
    r"|prompt: a sequence of \d+ tokens is longer than the factor ladder's end",
    re.DOTALL,
)
_BUSY = re.compile(r"The engine (?:is currently busy|has reached its prefill token backlog limit)")
_NO_MODEL = re.compile(r"The model `.*` does not exist", re.DOTALL)
# What the shapes above hold besides what they say of the error itself.
_SHAPES = ("error", "detail", "object", "type", "message", "param", "code")


def error_type(status: int) -> str:
    """OpenAI's name for the kind of error that an HTTP status stands for."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def refusal_body(refusal: Refusal, *, anthropic: bool) -> bytes:
    """The body that answers a refused request."""
    error = {
        "message": refusal.message,
        "type": error_type(refusal.status),
        "param": refusal.param,
        "code": refusal.code,
    }
    return _json(error, {}, anthropic=anthropic)


def converted(status: int, body: bytes, *, anthropic: bool) -> bytes:
    """An error's body in OpenAI's shape, whatever shape it has.

    Args:
        status: The response's HTTP status, at least 400.
        body: Its body.
        anthropic: Whether Anthropic's clients read it; what they look for is then there too.
    """
    try:
        value = json.loads(body)
    except ValueError:  # plain text, or nothing
        value = body.decode(errors="replace")
    rest = {name: each for name, each in value.items() if name not in _SHAPES} if isinstance(value, dict) else {}
    return _json(_error(status, value), rest, anthropic=anthropic)


def converted_event(event: bytes) -> bytes:
    """A server-sent event ``data: {"error": ...}`` with OpenAI's error in it; other events as they are."""
    if (status := event_status(event)) is None:
        return event
    value = json.loads(event.removeprefix(b"data: "))
    return b"data: " + json.dumps({"error": _error(status, value)}).encode() + b"\n\n"


def event_status(event: bytes) -> int | None:
    """The status in a server-sent event ``data: {"error": ...}``; None of other events."""
    if not event.startswith(ERROR_EVENT):
        return None
    try:
        return int(json.loads(event.removeprefix(b"data: "))["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return None  # not one of vLLM's, which all have their status as code


def _error(status: int, value: Any) -> dict[str, str | None]:
    said = _said(value)
    message = said.get("message")
    if not isinstance(message, str) or not message:
        message = _phrase(status)
    if status == 500:
        message = FAULT
    kind, param, code = said.get("type"), said.get("param"), said.get("code")
    if not isinstance(code, str):
        code = _CODES.get(status)
        if status == 400 and _TOO_LONG.match(message):
            code = "context_length_exceeded"
        elif status == 404 and _NO_MODEL.match(message):
            code = "model_not_found"
        elif status == 503 and _BUSY.match(message):
            code = "server_overloaded"
    return {
        "message": message,
        "type": kind if kind in _KNOWN else error_type(status),
        "param": param if isinstance(param, str) else None,
        "code": code,
    }


def _said(value: Any) -> Mapping[str, Any]:
    """What an error's body says, by the names of OpenAI's fields."""
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
