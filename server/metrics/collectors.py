"""Prometheus metrics that several processes can fill, and a histogram that adds many values at once."""

from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample


def _without_created(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Leave out ``_created``, which doubles the counters; one process alone exports it, several together do not."""
    return tuple(sample for sample in samples if sample.name != "_created")


class StepCounter(Counter):
    """A counter whose series are the same whether one API server process runs or several."""

    def _child_samples(self) -> Iterable[Sample]:
        return _without_created(super()._child_samples())


class StepHistogram(Histogram):
    """A histogram that adds many values at once; ``Histogram.observe`` walks all buckets for each value."""

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
