"""Prometheus's metrics, as many processes can fill them, and a histogram that takes many values at once."""

from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample


def _without_created(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Leave out when a series was created: one process exports it, several together do not, and it doubles the counters."""
    return tuple(sample for sample in samples if sample.name != "_created")


class StepCounter(Counter):
    """A counter whose series are the same whether one API server process runs or several."""

    def _child_samples(self) -> Iterable[Sample]:
        return _without_created(super()._child_samples())


class StepHistogram(Histogram):
    """A histogram for values that come by the dozen, while ``Histogram.observe`` walks all buckets for each."""

    def add(self, *amounts: float) -> None:
        """Observe every amount."""
        counts: dict[int, int] = {}
        ends = self._upper_bounds
        for amount in amounts:
            index = bisect_left(ends, amount)
            counts[index] = counts.get(index, 0) + 1
        self._sum.inc(sum(amounts))
        for index, count in counts.items():
            self._buckets[index].inc(count)

    def _child_samples(self) -> Iterable[Sample]:
        return _without_created(super()._child_samples())
