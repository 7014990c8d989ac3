"""Routers in front of simulated replicas: their scorers and their choice of a replica.

A router knows its requests in flight and its last reading of each replica's ``/metrics``. Scores follow llm-d-router: each
scorer rates every replica from 0 to 1, scores are weighted and summed, and the highest sum wins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ropeswitch.loadtests.simulation.workloads import FIRST_SET, Arrival

Scorer = Callable[["Fleet", Arrival], list[float]]


@dataclass(frozen=True)
class Reading:
    """One reading of a replica's ``/metrics``.

    Attributes:
        waiting: Requests waiting in the engine (``vllm:num_requests_waiting``).
        kv_usage: Share of the KV cache in use (``vllm:kv_cache_usage_perc``).
        queued_tokens: Prompt tokens of all requests that are not computed yet.
        prefill_seconds: ``ropeswitch_remaining_prefill_seconds``; 0 for stock's scheduler, which does not export it.
    """

    waiting: int = 0
    kv_usage: float = 0.0
    queued_tokens: int = 0
    prefill_seconds: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """A router's view at one moment, with one entry per replica.

    Attributes:
        readings: Latest readings of the metrics.
        in_flight: Requests sent but not finished.
        prefixes: Prefix tokens sent to the replica, by session.
    """

    readings: Sequence[Reading]
    in_flight: Sequence[int]
    prefixes: Sequence[Mapping[str, int]]


def _lower_is_better(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [1.0 if high == low else (high - value) / (high - low) for value in values]


def requests(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Score replicas by fewest requests in flight (``active-request-scorer``)."""
    return _lower_is_better(fleet.in_flight)


def queue(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Score replicas by fewest waiting requests (``queue-scorer``)."""
    return _lower_is_better([each.waiting for each in fleet.readings])


def kv_cache(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Score replicas by least KV cache in use (``kv-cache-utilization-scorer``)."""
    return [1 - each.kv_usage for each in fleet.readings]


def tokens(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Score replicas by fewest prompt tokens left to compute (``token-load-scorer``)."""
    return _lower_is_better([each.queued_tokens for each in fleet.readings])


def prefill(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Score replicas by least predicted remaining prefill time (``endpoint-attribute-scorer``)."""
    return _lower_is_better([each.prefill_seconds for each in fleet.readings])


def prefix(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Score replicas by the share of the prompt sent to them before (``prefix-cache-scorer``)."""
    known = [0 if arrival.session is None else each.get(arrival.session, 0) for each in fleet.prefixes]
    return [min(tokens_, arrival.prompt) / arrival.prompt for tokens_ in known]


@dataclass
class Router:
    """Sends each request to the replica with the highest weighted score; ties alternate.

    Attributes:
        scorers: Pairs of weight and scorer; none for round robin.
        long_replicas: Number of replicas, the last ones, that take only prompts beyond the first factor set; 0 for one pool.
    """

    scorers: tuple[tuple[float, Scorer], ...] = ()
    long_replicas: int = 0
    _turn: int = field(default=0, init=False)

    def choose(self, fleet: Fleet, arrival: Arrival) -> int:
        """Return the index of the replica for a request."""
        count = len(fleet.in_flight)
        scores = [0.0] * count
        for weight, scorer in self.scorers:
            scores = [have + weight * more for have, more in zip(scores, scorer(fleet, arrival), strict=True)]
        border = count - self.long_replicas
        allowed = range(count)
        if self.long_replicas:
            allowed = range(border, count) if arrival.prompt > FIRST_SET else range(border)
        best = max(scores[index] for index in allowed)
        equals = [index for index in allowed if scores[index] == best]
        self._turn += 1
        return equals[self._turn % len(equals)]


# Include round robin, the default of llm-d's router, and the configuration of deploy/llm-d/router.yaml.
SCORERS: Mapping[str, tuple[tuple[float, Scorer], ...]] = {
    "round robin": (),
    "least requests": ((1, requests),),
    "least queued tokens": ((1, tokens), (0.001, requests)),
    "prefix-aware": ((2, queue), (2, kv_cache), (3, prefix)),
    "remaining prefill": ((1, prefill), (0.001, requests)),
    "remaining prefill and prefix": ((3, prefill), (0.01, requests), (3, prefix)),
    "two pools": ((1, requests),),
}
POOLED = ("two pools",)
# Routers that need a metric which stock's scheduler does not export.
OURS_ONLY = ("remaining prefill", "remaining prefill and prefix")
