"""Reads the per-length metrics as Prometheus would: sums over labels, and quantiles of histograms."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample
from pydantic import BaseModel, Field

from ropeswitch.server.metrics.instruments import Instrument

PREFIX = "ropeswitch_"


class Times(BaseModel):
    """Mean and quantiles of a histogram of seconds; null where it is empty.

    With fine buckets quantiles are interpolated as in Prometheus; with coarse ones they are the upper bound of the bucket.
    """

    count: int
    mean: float | None = Field(description="Exact.")
    p50: float | None
    p95: float | None
    p99: float | None


class Readings:
    """The metrics of all API server processes and engines at one moment, from the registry that ``/metrics`` reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for family in registry.collect():
            if family.name.startswith(PREFIX):
                for sample in family.samples:
                    self._samples[sample.name].append(sample)

    def sums(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        """Return a counter's or a gauge's values, summed by the values of these labels."""
        sums: Counter[tuple[str, ...]] = Counter()
        for sample in self._samples.get(name, ()):
            sums[tuple(sample.labels[each] for each in labels)] += round(sample.value)
        return sums

    def times(self, instrument: Instrument, **labels: str) -> Times:
        """Return mean and quantiles over all samples of a histogram that have these labels."""
        counts: defaultdict[float, float] = defaultdict(float)
        for sample in self._with(f"{instrument.name}_bucket", labels):
            counts[float(sample.labels["le"])] += sample.value
        buckets = sorted(counts.items())
        count = buckets[-1][1] if buckets else 0.0
        if not count:
            return Times(count=0, mean=None, p50=None, p95=None, p99=None)
        seconds = sum(sample.value for sample in self._with(f"{instrument.name}_sum", labels))
        estimate = coarse_quantile if instrument.lowest is None else quantile
        p50, p95, p99 = (estimate(buckets, q) for q in (0.5, 0.95, 0.99))
        return Times(count=round(count), mean=seconds / count, p50=p50, p95=p95, p99=p99)

    def _with(self, name: str, labels: dict[str, str]) -> Iterable[Sample]:
        wanted = labels.items()
        return (sample for sample in self._samples.get(name, ()) if wanted <= sample.labels.items())


# Each bucket's upper bound, increasing to infinity, and its cumulative count; the last count is at least 1.
Buckets = Sequence[tuple[float, float]]


def quantile(buckets: Buckets, q: float) -> float:
    """Return a quantile, ``q`` above 0, as Prometheus's ``histogram_quantile`` does (``promql/quantile.go``).

    It is inside the bucket with the quantile's rank; where that is the last bucket, it is the last finite bound.
    """
    rank = q * buckets[-1][1]
    for (start, below), (end, count) in pairwise([(0.0, 0.0), *buckets[:-1]]):
        if count >= rank:
            return start + (end - start) * (rank - below) / (count - below)
    return buckets[-2][0]


def coarse_quantile(buckets: Buckets, q: float) -> float | None:
    """Return the upper bound of the bucket with the quantile's rank, None if infinite; arguments as in :func:`quantile`."""
    end = next(end for end, count in buckets if count >= q * buckets[-1][1])
    return None if end == inf else end
