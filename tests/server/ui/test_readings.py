"""The status page's figures are those that Prometheus would tell of the same metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from ropeswitch.server.metrics.instruments import STALL, TTFT, Instrument
from ropeswitch.server.metrics.series import bounds
from ropeswitch.server.ui.readings import Readings
from tests.server.metrics.test_series import nearest
from tests.server.metrics.test_series import quantile as as_prometheus

RATIO = 1.1


def observed(*parts: tuple[str, list[float]], by: Instrument = TTFT) -> Readings:
    """Readings of one histogram, which has seen these seconds of each factor set."""
    registry = CollectorRegistry()
    histogram = Histogram(by.name, by.text, ["factor_set"], buckets=bounds(by, RATIO), registry=registry)
    for name, seconds in parts:
        labelled = histogram.labels(name)
        for each in seconds:
            labelled.observe(each)
    return Readings(registry)


SECONDS = st.lists(st.floats(0, 20000), min_size=1, max_size=30)


@given(SECONDS, SECONDS)
def test_quantiles_over_several_sets_are_those_of_prometheus(ours: list[float], others: list[float]) -> None:
    together = ours + others
    readings = observed(("long", ours), ("short", others))
    times = readings.times(TTFT)
    assert times.count == len(together)
    assert times.mean == pytest.approx(sum(together) / len(together))
    for q, value in ((0.5, times.p50), (0.95, times.p95), (0.99, times.p99)):
        assert value == pytest.approx(as_prometheus(bounds(TTFT, RATIO), together, q)), q
    assert readings.times(TTFT, factor_set="long") == observed(("long", ours)).times(TTFT)


@given(SECONDS)
def test_no_quantile_of_coarse_buckets_is_above_what_is_told(seconds: list[float]) -> None:
    times = observed(("long", seconds), by=STALL).times(STALL)
    assert times.mean == pytest.approx(sum(seconds) / len(seconds))
    for q, value in ((0.5, times.p50), (0.95, times.p95), (0.99, times.p99)):
        exact = nearest(seconds, q)
        ends = [end for end in STALL.buckets if end >= exact]
        assert value == (ends[0] if ends else None), q
