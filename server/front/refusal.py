"""Refusals: the answer to a rejected request, and the one error class that carries it.

Code that rejects a request, before or after its prompt is known, raises :class:`RefusedError`; ``answer.py`` formats the
answer. :func:`refused` counts it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import HTTPException


@dataclass(frozen=True)
class Refusal:
    """The answer to a rejected request.

    Attributes:
        reason: Label value in the metrics, such as ``queue_tokens``.
        status: The HTTP status.
        code: The error's ``code``, for programs.
        message: The error's message, for people.
        param: The wrong field of the request, or None.
        retry_after: Whole seconds to wait before a retry, or None.
        authenticate: Whether to send ``www-authenticate``.
        close: Whether to close the connection after the answer.
    """

    reason: str
    status: int
    code: str | None
    message: str
    param: str | None = None
    retry_after: int | None = None
    authenticate: bool = False
    close: bool = False

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer, without those that describe its body."""
        headers = []
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.authenticate:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


class RefusedError(HTTPException):
    """Rejects a request. It is an ``HTTPException`` because FastAPI's body parsing lets no other error through.

    Attributes:
        refusal: The answer.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, refusal.message)
        self.refusal = refusal


# Called with the reason and, if known, the number of prompt tokens.
listeners: list[Callable[[str, int | None], None]] = []


def refused(reason: str, tokens: int | None) -> None:
    """Report a refusal to the listeners, which count it.

    Args:
        reason: ``Refusal.reason``.
        tokens: The length of the prompt; None if the request was refused before that was known.
    """
    for listener in listeners:
        listener(reason, tokens)


NO_KEY = Refusal(
    reason="authentication",
    status=401,
    code="invalid_api_key",
    message="The API key is missing. Send it in the header 'Authorization: Bearer KEY'.",
    authenticate=True,
)
WRONG_KEY = Refusal(
    reason="authentication",
    status=401,
    code="invalid_api_key",
    message="The API key is invalid. Send a valid one in the header 'Authorization: Bearer KEY'.",
    authenticate=True,
)

# Counted like every other 503. Another replica can take the retry.
LEAVING = Refusal(
    reason="unavailable",
    status=503,
    code="server_leaving",
    message="The server is shutting down and accepts no new requests. Retry to reach another replica.",
    retry_after=5,
    close=True,
)
NO_WEBSOCKET = Refusal(
    reason="invalid",
    status=404,
    code=None,
    message="The metrics have no WebSocket. Send GET /metrics.",
)


def invalid_body(message: str, param: str | None = None) -> Refusal:
    """Refusal of a body with a wrong value; ``param`` is the value's field, None for the whole body."""
    return Refusal("invalid", 400, None, message, param=param)


def header_too_long(name: str, limit: int) -> Refusal:
    """Refusal of a header whose value has more than ``limit`` bytes."""
    message = f"The header {name!r} has more than {limit} bytes, this server's limit. Send a shorter value."
    return Refusal("invalid", 400, None, message, param=name)


def priority_out_of_range(value: str) -> Refusal:
    """Refusal of a priority that does not fit in 64 bits."""
    message = f"The header 'x-vllm-priority' is {value[:40]!r}; it must be an integer from -2**63 to 2**63 - 1."
    return Refusal("invalid", 400, None, message, param="x-vllm-priority")


def body_too_large(limit: int) -> Refusal:
    """Refusal of a body of more than ``limit`` bytes (``--max-body-bytes``)."""
    message = f"The request body exceeds this server's limit of {limit} bytes. Send a smaller one."
    return Refusal("body_bytes", 413, "request_too_large", message)


def bodies_too_many(limit: int) -> Refusal:
    """Refusal of a body that, with those of other requests, exceeds ``limit`` bytes (``--max-held-body-bytes``)."""
    message = f"This request body would exceed the limit of {limit} bytes for request bodies in flight. Retry later."
    return Refusal("held_bytes", 503, "server_busy", message, retry_after=1)


def body_stalled(seconds: float) -> Refusal:
    """Refusal of a body that stalled for ``seconds`` seconds (``--body-timeout``)."""
    message = f"The request body stalled: no data arrived for {seconds:g} seconds."
    return Refusal("body_timeout", 408, "request_timeout", message)


def body_slow(rate: int) -> Refusal:
    """Refusal of a body that arrives at less than ``rate`` bytes per second (``--body-timeout``)."""
    message = f"The request body arrived too slowly: fewer than {rate} bytes per second."
    return Refusal("body_timeout", 408, "request_timeout", message)


def head_late(seconds: float) -> Refusal:
    """Refusal of a request whose line and headers are incomplete after ``seconds`` seconds (``--body-timeout``)."""
    message = f"The request headers were incomplete after {seconds:g} seconds."
    return Refusal("head_timeout", 408, "request_timeout", message)


def head_too_large(limit: int) -> Refusal:
    """Refusal of a request whose line and headers are larger than ``limit`` bytes (``--h11-max-incomplete-event-size``)."""
    message = f"The request headers exceed this server's limit of {limit} bytes."
    return Refusal("head_bytes", 431, "request_too_large", message)


def too_many_headers(limit: int) -> Refusal:
    """Refusal of a request with more than ``limit`` headers (``--h11-max-header-count``)."""
    message = f"The request has more than {limit} headers, this server's limit."
    return Refusal("head_count", 431, "request_too_large", message, close=True)


def prompt_too_long(tokens: int, limit: int) -> Refusal:
    """Refusal of a prompt of ``tokens`` tokens where ``limit`` are allowed (``--max-prompt-tokens``)."""
    # Begins like OpenAI's message, by which litellm recognizes this error.
    message = (
        f"This model's maximum context length is {limit} tokens for a prompt on this server, and the prompt has {tokens} "
        "tokens. Send a shorter prompt."
    )
    return Refusal("prompt_tokens", 400, "context_length_exceeded", message, param="prompt")


def queue_full(name: str, unit: str, limit: int, retry_after: int) -> Refusal:
    """Refusal of a prompt that would exceed the ``limit`` of requests or tokens (``unit``) waiting in its length class."""
    message = f"The queue of length class {name!r} is full (at most {limit} {unit}). Retry later."
    return Refusal(f"queue_{unit}", 503, "queue_full", message, retry_after=retry_after)


def too_many_at_once(limit: int) -> Refusal:
    """Refusal of a request whose key has ``limit`` requests in flight (``--max-concurrent-per-key``)."""
    message = f"This API key already has {limit} requests in flight, its limit. Retry when one has ended."
    return Refusal("key_concurrency", 429, "rate_limit_exceeded", message, retry_after=1)
