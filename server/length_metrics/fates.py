"""Requests that never reach an engine: counted by what became of them, which vLLM's metrics tell of none.

A request is counted here, as one, when no prompt of it was given to an engine; else its sequences are (``outputs.py``).
"""

from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.server.front.request import FrontRequest, current_request
from ropeswitch.server.front.routes import route_path
from ropeswitch.server.length_metrics.metrics import LengthMetrics

# Where prompts are posted.
PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/v1/systemone",
        "/v2/embed",
        "/v2/rerank",
        "/cohere/v2/chat",
        "/inference/v1/generate",
        "/generative_scoring",
        "/invocations",
        "/classify",
        "/pooling",
        "/rerank",
        "/score",
    }
)
# Those of HTTP's errors that tell why; any other below 500 says that the request is not a right one.
_REASONS = {401: "authentication", 403: "authentication", 429: "unavailable", 503: "unavailable"}


@dataclass
class Fate:
    """What has happened to the HTTP request in hand.

    Attributes:
        entered: Whether a prompt of it was given to an engine.
        refused: Whether it has been counted as refused.
        left: Whether its client left before it had its whole answer.
    """

    entered: bool = False
    refused: bool = False
    left: bool = False


current_fate: ContextVar[Fate | None] = ContextVar("ropeswitch_fate", default=None)


def rejection_reason(status: int) -> str | None:
    """Why a request was refused by the HTTP status of its answer, at least 400; None where the server failed."""
    return _REASONS.get(status, "invalid" if status < 500 else None)


def count_rejection(metrics: LengthMetrics, reason: str, length: int | None = None) -> None:
    """Count the request in hand as refused.

    Args:
        metrics: The app's ``state.length_metrics``.
        reason: One of ``instruments.REASONS``.
        length: Tokens of its prompt, None where nobody has counted them.

    Raises:
        ValueError: for another reason.
    """
    if (fate := current_fate.get()) is not None:
        fate.refused = True
    metrics.count_rejection(reason, length)


class CountFates:
    """The ASGI middleware that counts requests for prompts' answers that never reached an engine, inside the front.

    It does nothing where the app's ``state.length_metrics`` is None, or not there.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in PATHS:
            await self.app(scope, receive, send)
            return
        metrics: LengthMetrics | None = getattr(scope["app"].state, "length_metrics", None)
        request = current_request.get()
        assert request is not None
        if metrics is None:
            await self.app(scope, receive, send)
            return
        fate = Fate()
        # What is between this and the front may hold the answer back.
        request.over.append(partial(_count, fate, request, metrics))
        token = current_fate.set(fate)
        try:
            await self.app(scope, _noting_receive(receive, fate, request), send)
        except Exception:
            request.status = request.status or 500
            raise
        finally:
            current_fate.reset(token)


def _count(fate: Fate, request: FrontRequest, metrics: LengthMetrics) -> None:
    status = request.status
    if fate.entered or fate.refused:
        return
    if fate.left:
        metrics.count_outside("disconnect")
    elif status is not None and status >= 400:
        reason = rejection_reason(status)
        if reason is None:
            metrics.count_outside("error")
        else:
            metrics.count_rejection(reason)


def _noting_receive(receive: Receive, fate: Fate, request: FrontRequest) -> Receive:
    async def noting() -> Message:
        message = await receive()
        # The server says so too when it has sent the answer, and with an error the client has all that it gets.
        if message["type"] == "http.disconnect" and not request.whole and (request.status or 200) < 400:
            fate.left = True
        return message

    return noting
