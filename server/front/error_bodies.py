"""Converts errors to OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``, ``code`` a string or null.

vLLM's errors have six shapes: its own, like this one but with the HTTP status as ``code`` and other types;
``{"error": "text"}`` from its middlewares; ``{"detail": ...}`` from its router; ``{"type": "error", "error": {...}}`` from
the routes for Anthropic's clients; plain text; and an empty body. Messages are kept, except that of status 500.
"""

import json
import re
from collections.abc import Mapping
from http.client import responses
from typing import Any

from ropeswitch.server.front.refusal import Refusal

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
# Start of the event with which vLLM ends a stream on an error.
ERROR_EVENT = b'data: {"error"'
# Message of every fault of the server; details go to the log only.
FAULT = "The server failed to answer this request; the cause is in its log."
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
# Start of the messages about a prompt or an answer that is longer than the model's context; no client text precedes it.
_TOO_LONG = re.compile(
    r"This model's maximum context length is \d+ tokens"
    r"|The decoder prompt \(length \d+\) is longer than the maximum model length"
    r"|\w+=\d+ cannot be greater than max_model_len="
)
# Keys of the shapes above; others are passed on.
_SHAPES = ("error", "detail", "object", "type", "message", "param", "code")


def refusal_body(refusal: Refusal, *, anthropic: bool) -> bytes:
    """Return the response body of a refused request; ``anthropic`` as in :func:`converted`."""
    return _json(refusal.status, refusal.message, refusal.param, refusal.code, {}, anthropic=anthropic)


def converted(status: int, body: bytes, *, anthropic: bool) -> bytes:
    """Convert an error's body from any of these shapes; ``anthropic`` adds the ``type`` that Anthropic's clients need."""
    try:
        value = json.loads(body)
    except ValueError:  # plain text, or nothing
        value = body.decode(errors="replace")
    given = value if isinstance(value, dict) else {"message": value}
    rest = {name: each for name, each in given.items() if name not in _SHAPES}
    error = given.get("error", given.get("detail", given))
    error = error if isinstance(error, dict) else {"message": error}
    message, param, code = error.get("message"), error.get("param"), error.get("code")
    if not isinstance(message, str) or not message:
        message = responses.get(status, f"HTTP status {status}")
    if status == 500:
        message = FAULT
    if not isinstance(code, str):
        code = _CODES.get(status)
        if status == 400 and _TOO_LONG.match(message):
            code = "context_length_exceeded"
        elif status == 404 and param == "model":
            code = "model_not_found"
    return _json(status, message, param if isinstance(param, str) else None, code, rest, anthropic=anthropic)


def converted_event(event: bytes) -> tuple[int, bytes] | None:
    """Convert a server-sent event ``data: {"error": ...}``; return its status too. None for other events."""
    try:
        content = event.removeprefix(b"data: ")
        status = int(json.loads(content)["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return None  # not one of vLLM's, which all have their status as code
    return status, b"data: " + converted(status, content, anthropic=False) + b"\n\n"


def _json(
    status: int, message: str, param: str | None, code: str | None, rest: Mapping[str, Any], *, anthropic: bool
) -> bytes:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({**rest, **({"type": "error"} if anthropic else {}), "error": error}).encode()
