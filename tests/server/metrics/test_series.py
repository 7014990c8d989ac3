"""At most 3,000 series whatever is asked of a server, and buckets fine enough for the quantiles that Prometheus tells."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.metrics import instruments
from ropeswitch.server.metrics.bands import OTHER
from ropeswitch.server.metrics.instruments import GAP, INSTRUMENTS, TTFT
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from ropeswitch.server.metrics.series import MOST_SERIES, QUEUE_SERIES, SCHEDULER_SERIES, BandSet, SeriesPlan, bounds
from tests.server.metrics.ladders import DEFAULT, LADDERS, LLAMA2, PHI3, SEVEN, ladder, read, total

TIMES = SimpleNamespace(
    e2e_latency=3.0,
    queued_time=0.1,
    prefill_time=0.2,
    decode_time=2.0,
    mean_time_per_output_token=0.1,
    num_generation_tokens=21,
)


def use(metrics: LengthMetrics, band_set: BandSet) -> None:
    """Everything that can happen to a sequence in a band and set."""
    for chosen_by in instruments.POLICY.values:
        metrics.add_first(0, band_set, 0.5, 100, 1, chosen_by)
    metrics.add_later(0, band_set, [0.05], 1)
    metrics.add_switch(0, band_set, 0.3, 50, 50)
    for state in instruments.LIVE.values:
        metrics.add_live(band_set, state, 1)
    for outcome in instruments.OUTCOMES:
        metrics.add_ended(0, band_set, band_set, outcome, TIMES)


def used(sets: FactorLadder, band_sets: Sequence[BandSet]) -> CollectorRegistry:
    """The metrics after sequences in these bands and sets, and everything else that makes series."""
    registry = CollectorRegistry()
    metrics = LengthMetrics(sets, "m", registry)
    for band_set in band_sets:
        use(metrics, band_set)
    for length in (*metrics.plan.bands.ends, sets.max_length + 1, None):
        for reason in instruments.REASONS:
            metrics.count_rejection(reason, length)
    for outcome in ("error", "disconnect"):
        metrics.count_outside(outcome)
    return registry


@pytest.mark.parametrize("ends", [DEFAULT, PHI3, LLAMA2, (8192, 131072, 2097152), SEVEN, (2097152,)])
def test_every_band_has_series_in_its_own_set_and_on_common_ladders_in_the_next(ends: tuple[int, ...]) -> None:
    sets = ladder(*ends)
    plan = SeriesPlan(sets)
    starts = list(enumerate(plan.bands.sets))
    later = [(band, 1) for band, index in starts if index == 0] if ends in (DEFAULT, PHI3, LLAMA2) else []
    for each in INSTRUMENTS:
        for band, index in (starts if each.starting else []) + (later if each.crossing else []):
            assert plan.labels(each, (band, index)) == (plan.bands.names[band], sets.names[index]), each.name


@settings(max_examples=25)
@example(ladder(*DEFAULT))
@example(ladder(*PHI3))
@example(ladder(*LLAMA2))
@example(ladder(*SEVEN))
@example(ladder(*(1000 + 50 * i for i in range(24))))
@given(LADDERS)
def test_no_requests_make_more_series(sets: FactorLadder) -> None:
    """Sets that requests ask for put every band in every set. What has no room for its own series is still counted."""
    plan = SeriesPlan(sets)
    band_sets = [(band, index) for band in range(len(plan.bands.names)) for index in range(len(sets.sets))]
    found = read(used(sets, band_sets))
    assert len(GAUGES) == SCHEDULER_SERIES
    assert len(found) + SCHEDULER_SERIES + QUEUE_SERIES * len(sets.sets) <= MOST_SERIES
    assert total(found, f"{GAP.name}_count") == len(band_sets)
    others = total(found, f"{GAP.name}_count", input_sequence_length=OTHER, factor_set=OTHER)
    assert others == sum(OTHER in plan.labels(GAP, band_set) for band_set in band_sets)


def test_nothing_is_there_before_it_is_used() -> None:
    registry = CollectorRegistry()
    metrics = LengthMetrics(ladder(*DEFAULT), "m", registry)
    assert read(registry) == {}
    metrics.add_later(0, (0, 0), [0.05], 1)
    gaps = {f"{GAP.name}_{part}" for part in ("bucket", "sum", "count")}
    assert {name for name, _ in read(registry)} == {*gaps, instruments.GENERATED_TOKENS.name}


def quantile(ends: Sequence[float], seconds: Sequence[float], q: float) -> float:
    """Prometheus's ``histogram_quantile`` of these observations (promql/quantile.go, ``bucketQuantile``)."""
    counts = [0] * (len(ends) + 1)
    for each in seconds:
        counts[bisect_left(ends, each)] += 1
    rank, below, index = q * len(seconds), 0, 0
    while below + counts[index] < rank:
        below += counts[index]
        index += 1
    count = counts[index]
    if index == len(ends):
        return ends[-1]
    start = ends[index - 1] if index else 0.0
    return start + (ends[index] - start) * (rank - below) / count


def nearest(seconds: Sequence[float], q: float) -> float:
    """The observation at a quantile's rank, which is inside the bucket that Prometheus picks."""
    return sorted(seconds)[max(math.ceil(q * len(seconds)) - 1, 0)]


# As docs/metrics.md has them, besides the finest.
RATIOS = {DEFAULT: 1.1, PHI3: 1.14, LLAMA2: 1.16, (512, 1024, 32768, 262144): 1.2, SEVEN: 1.2}
LATENCIES = st.floats(math.log(0.01), math.log(14400), exclude_max=True).map(math.exp)


@settings(max_examples=300)
@given(st.lists(LATENCIES, min_size=1, max_size=50), st.floats(0.01, 1), st.sampled_from([*RATIOS]))
def test_any_quantile_of_any_latencies_is_as_near_as_the_ladder_s_ratio(
    seconds: list[float], q: float, ends: tuple[int, ...]
) -> None:
    """10% with the finest buckets, 20% with the widest."""
    ratio = SeriesPlan(ladder(*ends)).ratio
    assert ratio == RATIOS[ends]
    for each in (GAP, TTFT):
        estimate = quantile(bounds(each, ratio), seconds, q)
        assert estimate == pytest.approx(nearest(seconds, q), rel=ratio - 1)
