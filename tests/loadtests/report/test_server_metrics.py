"""The server's own metrics: differences of counters, and quantiles of histograms as Prometheus has them."""

import numpy as np
import pytest

from ropeswitch.loadtests.client.records import Sample
from ropeswitch.loadtests.report import server_metrics as metrics
from tests.loadtests.report.made_up import samples

NAME = "vllm:time_to_first_token_seconds"


def histogram(before: dict[str, float], after: dict[str, float]) -> list[Sample]:
    series = [{f'{NAME}_bucket{{le="{le}"}}': count for le, count in counts.items()} for counts in (before, after)]
    return [Sample(float(at), values) for at, values in enumerate(series)]


# The ten of before the run are all under 0.1; of the run's hundred half are under 0.5.
RUN = histogram({"0.1": 10, "0.5": 10, "1.0": 10, "+Inf": 10}, {"0.1": 10, "0.5": 60, "1.0": 100, "+Inf": 110})


@pytest.mark.parametrize(
    ("share", "value", "above"), [(0.25, 0.3, False), (0.5, 0.5, False), (0.7, 0.75, False), (0.99, 1.0, True)]
)
def test_a_quantile_is_interpolated_in_a_bucket_of_what_came_in_the_run(
    share: float, value: float, above: bool
) -> None:
    found = metrics.quantile(RUN, NAME, share)
    assert found is not None
    assert found.value == pytest.approx(value)
    assert found.above is above


def test_a_quantile_is_within_a_bucket_of_numpys() -> None:
    values = np.random.default_rng(1).gamma(2.0, 1.0, 5000)
    edges = [*np.round(np.arange(0.1, 20, 0.1), 1), np.inf]
    counted = {"+Inf" if edge == np.inf else str(edge): float(sum(values <= edge)) for edge in edges}
    run = histogram(dict.fromkeys(counted, 0.0), counted)
    for share in (0.01, 0.5, 0.9, 0.99):
        found = metrics.quantile(run, NAME, share)
        assert found is not None
        assert abs(found.value - np.quantile(values, share)) < 0.1


def test_a_histogram_that_counted_nothing_or_is_missing_has_no_quantiles() -> None:
    assert metrics.quantile([RUN[0], RUN[0]], NAME, 0.5) is None
    assert metrics.quantile(RUN[:1], NAME, 0.5) is None
    assert metrics.quantile(RUN, "vllm:e2e_request_latency_seconds", 0.5) is None


def test_a_bucket_that_appears_during_the_run_counts_from_zero() -> None:
    found = metrics.quantile([Sample(0, {}), RUN[1]], NAME, 0.5)
    assert found is not None
    assert found.value == pytest.approx(0.1 + 0.4 * 45 / 50)


def test_counters_grow_from_the_first_sample_to_the_last() -> None:
    found = samples(10, 40)
    assert metrics.increase(found, metrics.SWITCHES) == 4
    assert metrics.increase(found, "vllm:generation_tokens_total") == 800
    assert metrics.increase(found, "absent_total") is None
    times, rates = metrics.rates(found, "vllm:generation_tokens_total")
    assert len(times) == len(rates) + 1
    assert sum(rates) == pytest.approx(800)


def test_a_counter_that_falls_tells_of_a_restart() -> None:
    found = samples(10, 40)
    assert not metrics.restarted(found)
    assert metrics.restarted([*found, found[0]])
    # Gauges fall as they like.
    assert not metrics.restarted([Sample(0, {metrics.CACHE: 1.0}), Sample(1, {metrics.CACHE: 0.0})])


def test_what_a_server_does_not_have_is_named() -> None:
    assert metrics.missing(samples(10, 40)) == []
    found = [Sample(s.at, {k: v for k, v in s.values.items() if "ropeswitch" not in k}) for s in samples(10, 40)]
    assert metrics.missing(found) == ["ropeswitch_queued_requests", "ropeswitch_switches_total"]
    assert f"{NAME}_bucket" in metrics.missing([])
