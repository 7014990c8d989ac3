"""Prometheus's metrics, as many processes can fill them, and a histogram that is told a step's values at once."""

from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample


def _without_created(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Leave out when a series was created: one process tells it and several together do not, and it doubles the counters."""
    return tuple(sample for sample in samples if sample.name != "_created")


class StepCounter(Counter):
    """A counter whose series are the same whether one API server process runs or several."""

    def _child_samples(self) -> Iterable[Sample]:
        return _without_created(super()._child_samples())


class StepHistogram(Histogram):
    """A histogram for values that come by the hundred, most of them alike; ``Histogram.observe`` walks all buckets."""

    def add(self, amount: float, count: int = 1) -> None:
        """Observe an amount so many times."""
        self._sum.inc(amount * count)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(count)

    def _child_samples(self) -> Iterable[Sample]:
        return _without_created(super()._child_samples())
