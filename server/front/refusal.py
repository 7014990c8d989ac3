"""Refusals: the answer to a rejected request, and the one error class that carries it.

Code that rejects a request, before or after its prompt is known, raises :class:`RefusedError`; ``answer.py`` formats the
answer. :func:`refused` counts it.

Every error is answered in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``, ``code`` a string or null.
vLLM's errors have six shapes: its own, like this one but with the HTTP status as ``code`` and other types;
``{"error": "text"}`` from its middlewares; ``{"detail": ...}`` from its router; ``{"type": "error", "error": {...}}`` from
the routes for Anthropic's clients; plain text; and an empty body. Messages are kept, except that of status 500.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import responses
from typing import Any

from fastapi import HTTPException

from ropeswitch.server.front.limits.keys import Shares
from ropeswitch.server.metrics.instruments import Reason

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
# Characters of a message: more of them repeat a client's value, of which the beginning and the end are enough.
LONGEST_MESSAGE = 600
# Keys of the shapes above; others are passed on.
_SHAPES = ("error", "detail", "object", "type", "message", "param", "code")


@dataclass(frozen=True)
class Refusal:
    """The answer to a rejected request."""

    reason: Reason  # label value in the metrics
    status: int
    code: str | None  # the error's code, for programs
    message: str
    param: str | None = None  # the wrong field of the request
    retry_after: int | None = None  # seconds
    authenticate: bool = False  # whether to send www-authenticate
    close: bool = False  # whether to close the connection

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the answer, without those that describe its body."""
        headers = []
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.authenticate:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


class RefusedError(HTTPException):
    """Rejects a request. It is an ``HTTPException`` because FastAPI's body parsing lets no other error through."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, refusal.message)
        self.refusal = refusal


# Called with the reason and, if known, the number of prompt tokens.
listeners: list[Callable[[str, int | None], None]] = []


def refused(reason: str, tokens: int | None) -> None:
    """Report a refusal to the listeners, which count it; ``tokens`` is the prompt's length, if known."""
    for listener in listeners:
        listener(reason, tokens)


_HEADER = "in the header 'Authorization: Bearer KEY'."
NO_KEY = Refusal(
    "authentication", 401, "invalid_api_key", f"The API key is missing. Send it {_HEADER}", authenticate=True
)
WRONG_KEY = Refusal(
    "authentication", 401, "invalid_api_key", f"The API key is invalid. Send a valid one {_HEADER}", authenticate=True
)
# Counted like every other 503. Another replica can take the retry.
LEAVING = Refusal(
    "unavailable",
    503,
    "server_leaving",
    "The server is shutting down and accepts no new requests. Retry to reach another replica.",
    retry_after=5,
    close=True,
)


def invalid_body(message: str, param: str | None = None) -> Refusal:
    """Refusal of a body with a wrong value; ``param`` is the value's field, None for the whole body."""
    return Refusal("invalid", 400, None, message, param=param)


def no_room(reason: Reason, code: str, shares: Shares, held: str, retry_after: int = 1) -> Refusal:
    """Refusal by a limit that clients share; ``held`` says what is in use of it."""
    message = (
        f"{shares.flag}: {shares.total} of at most {shares.limit} {held}, leaving this client no room. Retry later."
    )
    return Refusal(reason, 503, code, message, retry_after=retry_after)


def too_many_headers(limit: int) -> Refusal:
    """Refusal by ``--h11-max-header-count``."""
    message = f"The request has more than {limit} headers, this server's limit."
    return Refusal("head_count", 431, "request_too_large", message, close=True)


def shortened(text: str) -> str:
    """Return a message of at most :data:`LONGEST_MESSAGE` characters, without its middle if it is longer."""
    return (
        text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE // 3]} ... {text[-LONGEST_MESSAGE // 3 :]}"
    )


def shorten(error: Exception) -> Exception:
    """Return a handler's error, whose message repeats no long value: vLLM's patterns for paths would search it for hours."""
    error.args = tuple(shortened(each) if isinstance(each, str) else each for each in error.args)
    # vLLM's errors add it to their text.
    if len(str(getattr(error, "value", None))) > LONGEST_MESSAGE // 3:
        vars(error)["value"] = None
    return error


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
    error = {"message": shortened(message), "type": kind, "param": param, "code": code}
    return json.dumps({**rest, **({"type": "error"} if anthropic else {}), "error": error}).encode()
