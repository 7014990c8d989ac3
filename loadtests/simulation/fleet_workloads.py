"""Requests for several replicas: one replica's workload for each, shifted in time, and sessions that share prefixes."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from ropeswitch.loadtests.simulation.cluster import Cluster
from ropeswitch.loadtests.simulation.costs import StepCosts
from ropeswitch.loadtests.simulation.workloads import CHUNK, FIRST_SET, Arrival, Size, make_workload, work

# Turns of a session, tokens that a user adds to one, and mean seconds between two turns, of which half is fixed.
TURNS, ADDED, PAUSE = 5, (50, 400), 40.0
# Tokens of a session's first prompt: a chat, or one about a document.
FIRST_PROMPT = (500, 32_768)
WORKLOADS = ("mixed", "heavy", "sessions")


def arrivals(name: str, replicas: int, cluster: Cluster, costs: StepCosts, size: Size) -> list[Arrival]:
    """The requests for ``replicas`` replicas, in order of time; each replica's share of them makes ``size.load``.

    Args:
        name: One of :data:`WORKLOADS`.
        replicas: Number of replicas.
        cluster: One replica.
        costs: Of one replica.
        size: Of one replica's share.
    """
    found: list[Arrival] = []
    for index in range(replicas):
        share = replace(size, seed=1000 * size.seed + index)
        random_ = random.Random(share.seed)
        if name == "sessions":
            found += _sessions(random_, costs, share, f"{index}-")
            continue
        each = make_workload(name, cluster, costs, share).arrivals
        horizon = each[-1].at
        # Long prompts of all shares would come at the same moments.
        offset = random_.uniform(0, horizon)
        found += [replace(arrival, at=(arrival.at + offset) % horizon) for arrival in each]
    return sorted(found, key=lambda arrival: arrival.at)


def long_share(requests: Sequence[Arrival], costs: StepCosts) -> float:
    """The share of the work that prompts beyond the first factor set make."""
    seconds = [work(costs, each.prompt, each.output) for each in requests]
    long = sum(second for second, each in zip(seconds, requests, strict=True) if each.prompt > FIRST_SET)
    return long / sum(seconds)


def _sessions(random_: random.Random, costs: StepCosts, size: Size, label: str) -> list[Arrival]:
    """Conversations whose every turn begins with all earlier ones."""
    low, high = map(math.log, FIRST_PROMPT)
    sessions, busy = [], 0.0
    for _ in range(max(1, size.requests // TURNS)):
        prompt, before, turns = round(math.exp(random_.uniform(low, high))), 0, []
        for _ in range(TURNS):
            output = random_.randint(50, 300)
            turns.append((prompt, output))
            # What the prefix cache does not hold of it.
            busy += work(costs, prompt, output) - costs.prefill_seconds(before, CHUNK)
            before = prompt
            prompt += output + random_.randint(*ADDED)
        sessions.append(turns)
    horizon = busy / size.load
    found = []
    for number, turns in enumerate(sessions):
        at = random_.uniform(0, horizon)
        for prompt, output in turns:
            found.append(Arrival(at, prompt, output, f"{label}{number}"))
            at += PAUSE / 2 + random_.expovariate(2 / PAUSE)
    return found
