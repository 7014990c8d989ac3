"""Counts requests of which no prompt reaches an engine, by outcome; of others, the sequences are (``outputs.py``)."""

from ropeswitch.server.front.context import RequestContext
from ropeswitch.server.metrics.length_metrics import LengthMetrics

# Routes to which prompts are posted.
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
        "/v1/decisions",  # From 0.33.0 on.
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
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
# Rejection reasons by HTTP status; any other status below 500 is an invalid request. A wrong key is a 401, a route of vLLM's
# that is disabled a 403, one that the model lacks a 501.
_REASONS = {401: "authentication", 429: "unavailable", 501: "invalid", 503: "unavailable"}


def rejection_reason(status: int) -> str | None:
    """Return why a request was rejected, by the HTTP status of its answer, at least 400; None if the server failed."""
    return _REASONS.get(status, "invalid" if status < 500 else None)


def count(context: RequestContext, metrics: LengthMetrics) -> None:
    """Count a finished request to one of :data:`PATHS` that reached no engine, unless it was counted as refused."""
    if context.refusal is not None:
        return
    status = context.sent.final_status
    if context.sent.left:
        metrics.count_outside("disconnect")
    elif status is not None and status >= 400:
        if (reason := rejection_reason(status)) is None:
            metrics.count_outside("error")
        else:
            metrics.count_rejection(reason)
