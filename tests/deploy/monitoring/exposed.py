"""The series that a server exposes by their names, as the code that makes them says: ours and vLLM's own."""

from collections.abc import Iterable

from prometheus_client import REGISTRY
from vllm import EngineArgs
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.metrics import instruments, queue_metrics
from ropeswitch.server.metrics.scheduling_metrics import GAUGES

# What Prometheus adds to every series of a target; the first and the last in Kubernetes only.
TARGET_LABELS = frozenset({"namespace", "job", "instance", "pod"})
# The values of labels that have a fixed set of them.
VALUES = {
    ("ropeswitch_requests_total", "outcome"): {*instruments.OUTCOMES, *instruments.OUTSIDE},
    ("ropeswitch_rejections_total", "reason"): set(instruments.REASONS),
    ("ropeswitch_live_requests", "state"): set(instruments.LIVE.values),
}

Series = dict[str, frozenset[str]]


def ours() -> Series:
    """By name, the labels of our series; those that Prometheus adds are left out."""
    series: Series = {}
    for each in (*instruments.INSTRUMENTS, instruments.POLICY, instruments.REJECTIONS):
        series |= _series(each.kind, each.name, each.labels)
    for name, _ in GAUGES.values():
        series |= _series("gauge", name, ("model_name", "engine"))
    for name, _ in (queue_metrics.REQUESTS, queue_metrics.TOKENS):
        series |= _series("gauge", name, queue_metrics.LABELS)
    return series


def vllm() -> Series:
    """The same of the series that vLLM's Prometheus logger makes for an engine."""
    PrometheusStatLogger(EngineArgs(model=str(BUNDLED_MODEL), max_model_len=1024).create_engine_config(), [0])
    series = {sample.name: frozenset(sample.labels) for each in REGISTRY.collect() for sample in each.samples}
    unregister_vllm_metrics()
    return series


def _series(kind: str, name: str, labels: Iterable[str]) -> Series:
    has = frozenset(labels)
    if kind == "histogram":
        return {f"{name}_bucket": has | {"le"}, f"{name}_sum": has, f"{name}_count": has}
    return {f"{name.removesuffix('_total')}_total" if kind == "counter" else name: has}
