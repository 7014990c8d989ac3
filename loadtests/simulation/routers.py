"""Routers in front of simulated replicas: what each looks at, and which replica it sends a request to.

A router knows the requests that it has in flight and what it last read of each replica's ``/metrics``. Scores are those of
llm-d-router: a figure of the replicas, scaled between the lowest and the highest, weighted and summed; the highest wins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ropeswitch.loadtests.simulation.workloads import FIRST_SET, Arrival

Scorer = Callable[["Fleet", Arrival], list[float]]


@dataclass(frozen=True)
class Reading:
    """What ``/metrics`` of a replica reported at a time.

    Attributes:
        waiting: Requests that wait in the engine (``vllm:num_requests_waiting``).
        kv_usage: Share of the KV cache in use (``vllm:kv_cache_usage_perc``).
        queued_tokens: Prompt tokens that are not computed yet, of all requests.
        prefill_seconds: ``ropeswitch_remaining_prefill_seconds``; 0 for stock's scheduler, which has none.
    """

    waiting: int = 0
    kv_usage: float = 0.0
    queued_tokens: int = 0
    prefill_seconds: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """What a router sees at one moment, a value for each replica.

    Attributes:
        readings: The last readings of the metrics.
        in_flight: Requests sent and not answered to their end.
        prefixes: Tokens of each session's prefix that the replica was sent.
    """

    readings: Sequence[Reading]
    in_flight: Sequence[int]
    prefixes: Sequence[Mapping[str, int]]


def _lower_is_better(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [1.0 if high == low else (high - value) / (high - low) for value in values]


def requests(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Fewest requests in flight (``active-request-scorer``)."""
    return _lower_is_better(fleet.in_flight)


def queue(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Fewest requests waiting (``queue-scorer``)."""
    return _lower_is_better([each.waiting for each in fleet.readings])


def kv_cache(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Least KV cache in use (``kv-cache-utilization-scorer``)."""
    return [1 - each.kv_usage for each in fleet.readings]


def tokens(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Fewest prompt tokens to compute (``token-load-scorer``)."""
    return _lower_is_better([each.queued_tokens for each in fleet.readings])


def prefill(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Least predicted prefill (``endpoint-attribute-scorer``)."""
    return _lower_is_better([each.prefill_seconds for each in fleet.readings])


def prefix(fleet: Fleet, arrival: Arrival) -> list[float]:
    """Largest share of the prompt that a replica was sent before (``prefix-cache-scorer``)."""
    known = [0 if arrival.session is None else each.get(arrival.session, 0) for each in fleet.prefixes]
    return [min(tokens_, arrival.prompt) / arrival.prompt for tokens_ in known]


@dataclass
class Router:
    """Sends each request to the replica with the highest weighted score; of equals to the next in turn.

    Attributes:
        scorers: Each with its weight; none for round robin.
        long_replicas: Replicas, the last ones, that take prompts beyond the first factor set and no others; 0 for one pool.
    """

    scorers: tuple[tuple[float, Scorer], ...] = ()
    long_replicas: int = 0
    _turn: int = field(default=0, init=False)

    def choose(self, fleet: Fleet, arrival: Arrival) -> int:
        """The index of the replica for a request."""
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


# By name: round robin, what llm-d's router does by default, and deploy/llm-d/router.yaml among them.
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
# Those that read what stock's scheduler does not have.
OURS_ONLY = ("remaining prefill", "remaining prefill and prefix")
