"""Gauges of what waits: those of the moment that they are asked for, for every length class."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from ropeswitch.server.front.queue_metrics import REQUESTS, TOKENS, QueueMetrics
from tests.server.front.parts import LADDER, parts


def test_they_follow_what_waits(tmp_path: Path) -> None:
    state, _admission = parts(tmp_path)
    registry = CollectorRegistry()
    metrics = QueueMetrics(state.queue, "m", registry)
    assert next(iter(registry.collect())).samples == []

    def read() -> list[tuple[float | None, float | None]]:
        metrics.refresh()
        labels = [{"model_name": "m", "length_class": name} for name in LADDER.names]
        return [
            (registry.get_sample_value(REQUESTS[0], each), registry.get_sample_value(TOKENS[0], each))
            for each in labels
        ]

    empty = [(0, 0)] * len(LADDER.names)
    assert read() == empty
    lengths = [each.max_length for each in LADDER.sets[:2]]
    tickets = [state.queue.admit(lengths[0], 0, 2, None, ()), state.queue.admit(lengths[1], 1, 1, None, ())]
    assert read()[:2] == [(2, 2 * lengths[0]), (1, lengths[1])]
    state.queue.settle(tickets)
    assert read() == empty
