"""The series that a server exposes by their names, as the code that makes them says: ours and vLLM's own."""

import ast
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from ropeswitch.server.metrics import queue_metrics
from ropeswitch.server.metrics.instruments import (
    INSTRUMENTS,
    LIVE,
    OUTCOMES,
    OUTSIDE,
    REASONS,
    REJECTIONS,
    REJECTIONS_LABELS,
)
from ropeswitch.server.metrics.scheduling_metrics import GAUGES

# What Prometheus adds to every series of a target; the first and the last in Kubernetes only.
TARGET_LABELS = frozenset({"namespace", "job", "instance", "pod"})
# The values of labels that have a fixed set of them.
VALUES = {
    ("ropeswitch_requests_total", "outcome"): {*OUTCOMES, *OUTSIDE},
    ("ropeswitch_rejections_total", "reason"): set(REASONS),
    ("ropeswitch_live_requests", "state"): set(LIVE.values),
}

Series = dict[str, frozenset[str]]


def ours() -> Series:
    """By name, the labels of our series; those that Prometheus adds are left out."""
    series: Series = {REJECTIONS: frozenset(REJECTIONS_LABELS)}
    for each in INSTRUMENTS:
        series |= _series(each.kind, each.name, each.labels)
    for name, _ in GAUGES.values():
        series |= _series("gauge", name, ("model_name", "engine"))
    for name, _ in (queue_metrics.REQUESTS, queue_metrics.TOKENS):
        series |= _series("gauge", name, queue_metrics.LABELS)
    return series


def vllm() -> Series:
    """The same of the series that vLLM's Prometheus logger makes, read from its source."""
    spec = find_spec("vllm")
    assert spec and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "v1" / "metrics" / "loggers.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    common = _common_labels(tree)
    series: Series = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        words = {word.arg: word.value for word in call.keywords}
        name, labels = words.get("name"), words.get("labelnames")
        if isinstance(call.func, ast.Attribute) and isinstance(name, ast.Constant) and labels is not None:
            kind = call.func.attr.strip("_").removesuffix("_cls")
            try:
                series |= _series(kind, str(name.value), _labels(labels, common))
            except ValueError:
                continue  # labels that are made while it runs; no query uses them
    return series


def _series(kind: str, name: str, labels: Iterable[str]) -> Series:
    has = frozenset(labels)
    if kind == "histogram":
        return {f"{name}_bucket": has | {"le"}, f"{name}_sum": has, f"{name}_count": has}
    return {f"{name.removesuffix('_total')}_total" if kind == "counter" else name: has}


def _common_labels(tree: ast.AST) -> list[str]:
    """The value of vLLM's variable ``labelnames``."""
    [found] = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "labelnames"
    ]
    return list(ast.literal_eval(found))


def _labels(node: ast.expr, common: list[str]) -> list[str]:
    if isinstance(node, ast.Name) and node.id == "labelnames":
        return common
    if isinstance(node, ast.BinOp):
        return _labels(node.left, common) + _labels(node.right, common)
    return list(ast.literal_eval(node))
