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
# By the name of the client's figure.
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2el": "vllm:e2e_request_latency_seconds",
}


@dataclass(frozen=True)
class Quantile:
    """A quantile from a histogram, in seconds.

    Attributes:
        value: Interpolated within its bucket, as in Prometheus; the last finite bound if the quantile is above it.
        above: Whether the quantile is above the last finite bound.
    """

    value: float
    above: bool


def series(samples: Sequence[Sample], name: str) -> tuple[list[float], list[float]]:
    """Return the times and values of a series; empty if the server does not export it."""
    known = [(sample.at, sample.values[name]) for sample in samples if name in sample.values]
    return [at for at, _ in known], [value for _, value in known]


def rates(samples: Sequence[Sample], name: str) -> tuple[list[float], list[float]]:
    """Return the times of a counter's samples and its rates between them: one time more than rates."""
    times, values = series(samples, name)
    spans = list(zip(times, times[1:], values, values[1:], strict=False))
    return times, [(after - before) / (stop - start) for start, stop, before, after in spans]


def increase(samples: Sequence[Sample], name: str) -> float | None:
    """Return a counter's increase from the first sample to the last; None if fewer than two have it."""
    _, values = series(samples, name)
    return values[-1] - values[0] if len(values) > 1 else None


def restarted(samples: Sequence[Sample]) -> bool:
    """Return whether a counter ever fell, as it does when a server restarts."""
    counters = {name for sample in samples for name in sample.values if name.endswith(("_total", "_count", "_sum"))}
    falls = (pairwise(values) for values in (series(samples, name)[1] for name in counters))
    return any(after < before for pairs in falls for before, after in pairs)


def missing(samples: Sequence[Sample]) -> list[str]:
    """Return the metrics shown in the report that this server does not export."""
    present = {name.partition("{")[0] for sample in samples for name in sample.values}
    histograms = [f"{name}_bucket" for name in HISTOGRAMS.values()]
    return [name for name in (*GAUGES.values(), CACHE, *COUNTERS.values(), *histograms) if name not in present]


def quantile(samples: Sequence[Sample], name: str, share: float) -> Quantile | None:
    """Return a quantile of a histogram's observations between the first sample and the last.

    Args:
        samples: Samples in order of time.
        name: Name of the histogram, without ``_bucket``.
        share: The quantile, from 0 to 1.

    Returns:
        None if the server does not export the histogram, or it has no observations.
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
    raise ValueError(f"histogram {name}: no bucket reaches {share:.0%} of its count: buckets do not increase with le")


def _buckets(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """Return the upper bounds of a histogram's buckets and the observations up to each between the samples."""
    if len(samples) < 2:
        return []
    first, last = samples[0].values, samples[-1].values
    pattern = re.compile(re.escape(name) + r'_bucket\{le="([^"]+)"\}')
    found = {key: match for key in last if (match := pattern.fullmatch(key))}
    return sorted((float(match[1]), last[key] - first.get(key, 0.0)) for key, match in found.items())
