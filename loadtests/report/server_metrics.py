"""The server's own metrics over a run: gauges, rates of counters, and quantiles of histograms."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from ropeswitch.loadtests.client.records import Sample

GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "queued by ropeswitch": "ropeswitch_queued_requests",
}
CACHE = "vllm:kv_cache_usage_perc"
GENERATED = "vllm:generation_tokens_total"
SWITCHES = "ropeswitch_switches_total"
COUNTERS = {
    "prompt tokens": "vllm:prompt_tokens_total",
    "prompt tokens found in the prefix cache": "vllm:prefix_cache_hits_total",
    "output tokens": GENERATED,
    "preemptions": "vllm:num_preemptions_total",
    "switches to the next factor set": SWITCHES,
}
# By the name that the client's figure has.
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2el": "vllm:e2e_request_latency_seconds",
}


@dataclass(frozen=True)
class Quantile:
    """A quantile from a histogram, in seconds.

    Attributes:
        value: Interpolated within its bucket, as Prometheus does; the last finite bound where it is above that.
        above: Whether it is above the last finite bound.
    """

    value: float
    above: bool


def series(samples: Sequence[Sample], name: str) -> tuple[list[float], list[float]]:
    """When a series was read, and what it was; empty where the server does not have it."""
    known = [(sample.at, sample.values[name]) for sample in samples if name in sample.values]
    return [at for at, _ in known], [value for _, value in known]


def rates(samples: Sequence[Sample], name: str) -> tuple[list[float], list[float]]:
    """The rate of a counter between each sample and the next, with the times of both ends: one time more than rates."""
    times, values = series(samples, name)
    spans = list(zip(times, times[1:], values, values[1:], strict=False))
    return times, [(after - before) / (stop - start) for start, stop, before, after in spans]


def increase(samples: Sequence[Sample], name: str) -> float | None:
    """By how much a counter grew from the first sample to the last; None where it is not in two samples."""
    _, values = series(samples, name)
    return values[-1] - values[0] if len(values) > 1 else None


def restarted(samples: Sequence[Sample]) -> bool:
    """Whether a counter ever fell, as it does when a server starts again."""
    counters = {name for sample in samples for name in sample.values if name.endswith(("_total", "_count", "_sum"))}
    falls = (pairwise(values) for values in (series(samples, name)[1] for name in counters))
    return any(after < before for pairs in falls for before, after in pairs)


def missing(samples: Sequence[Sample]) -> list[str]:
    """The metrics that are shown of a server and that this one does not have."""
    present = {name.partition("{")[0] for sample in samples for name in sample.values}
    histograms = [f"{name}_bucket" for name in HISTOGRAMS.values()]
    return [name for name in (*GAUGES.values(), CACHE, *COUNTERS.values(), *histograms) if name not in present]


def quantile(samples: Sequence[Sample], name: str, share: float) -> Quantile | None:
    """A quantile of what a histogram counted from the first sample to the last.

    Args:
        samples: In order of time.
        name: The histogram's, without ``_bucket``.
        share: From 0 to 1.

    Returns:
        None where the server does not have the histogram, or it counted nothing.
    """
    bounds = _buckets(samples, name)
    total = bounds[-1][1] if bounds else 0.0
    if not total:
        return None
    low, under = 0.0, 0.0
    for bound, up_to in bounds:
        if up_to >= share * total and up_to > under:
            if bound == inf:
                return Quantile(low, True)
            return Quantile(low + (bound - low) * (share * total - under) / (up_to - under), False)
        low, under = bound, up_to
    raise ValueError(f"histogram {name}: no bucket holds {share:.0%} of its counts: its buckets do not grow with le")


def _buckets(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """The upper bounds of a histogram's buckets, and how many values were up to each between the samples."""
    if len(samples) < 2:
        return []
    first, last = samples[0].values, samples[-1].values
    pattern = re.compile(re.escape(name) + r'_bucket\{le="([^"]+)"\}')
    found = {key: match for key in last if (match := pattern.fullmatch(key))}
    return sorted((float(match[1]), last[key] - first.get(key, 0.0)) for key, match in found.items())
