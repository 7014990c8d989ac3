"""Gauges: waiting requests and tokens by length class, which autoscaling uses; dropped log lines; an unverified vLLM."""

from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from ropeswitch.model_patches.switch.releases import unverified
from ropeswitch.server.front.limits.queue_limits import Admission

LABELS = ("model_name", "length_class")
REQUESTS = ("ropeswitch_queued_requests", "Answers waiting for their first token, by length class of the prompt.")
TOKENS = ("ropeswitch_queued_tokens", "Prompt tokens waiting to be computed, by length class of the prompt.")
DROPPED = ("ropeswitch_dropped_log_lines", "Lines of standard output dropped since the start because nobody read them.")

UNVERIFIED = (
    "ropeswitch_unverified_vllm",
    "1 if vLLM has no recorded fingerprints (--unverified-vllm), else 0.",
)


def queue_gauges(
    queue: Admission, model_name: str, dropped_lines: Any, registry: CollectorRegistry = REGISTRY
) -> Callable[[], None]:
    """Register the gauges of a process's waiting prompts, once vLLM has set Prometheus up; return what sets them.

    ``/metrics`` of any process sums the values that all processes have set last; they share ``dropped_lines``.
    """
    requests, tokens = (
        Gauge(name, text, LABELS, multiprocess_mode="livesum", registry=registry) for name, text in (REQUESTS, TOKENS)
    )
    dropped, not_verified = (
        Gauge(*each, ["model_name"], multiprocess_mode="mostrecent", registry=registry).labels(model_name)
        for each in (DROPPED, UNVERIFIED)
    )
    not_verified.set(unverified())

    def refresh() -> None:
        for each in queue.classes:
            requests.labels(model_name, each.name).set(each.requests.total)
            tokens.labels(model_name, each.name).set(each.tokens.total)
        dropped.set(dropped_lines.value)

    return refresh
