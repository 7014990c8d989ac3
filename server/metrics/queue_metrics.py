"""Gauges of waiting requests and tokens by length class; autoscaling uses them."""

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from ropeswitch.server.front.limits.queue_limits import Admission

LABELS = ("model_name", "length_class")
REQUESTS = ("ropeswitch_queued_requests", "Answers waiting for their first token, by length class of the prompt.")
TOKENS = ("ropeswitch_queued_tokens", "Prompt tokens waiting to be computed, by length class of the prompt.")


class QueueMetrics:
    """The gauges of one API server process and its waiting prompts, made after vLLM has set Prometheus up."""

    def __init__(self, queue: Admission, model_name: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._queue = queue
        self._model_name = model_name
        # ``/metrics`` of any process sums the counts of all.
        self._requests, self._tokens = (
            Gauge(name, text, LABELS, multiprocess_mode="livesum", registry=registry)
            for name, text in (REQUESTS, TOKENS)
        )

    def refresh(self) -> None:
        """Set the gauges; other processes' ``/metrics`` show the values set last."""
        for index, each in enumerate(self._queue.classes):
            requests, tokens = self._queue.waiting(index)
            self._requests.labels(self._model_name, each.name).set(requests)
            self._tokens.labels(self._model_name, each.name).set(tokens)
