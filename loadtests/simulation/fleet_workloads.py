"""Requests for several replicas: one time-shifted workload per replica, or sessions that share prefixes."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from ropeswitch.loadtests.simulation.cluster import Cluster
from ropeswitch.loadtests.simulation.costs import StepCosts
from ropeswitch.loadtests.simulation.workloads import CHUNK, FIRST_SET, Arrival, Size, make_workload, work

# Turns per session, tokens a user adds per turn, and mean seconds between turns, half of which are fixed.
TURNS, ADDED, PAUSE = 5, (50, 400), 10.0
# Tokens of a session's first prompt, from a chat to a question about a document.
FIRST_PROMPT = (500, 32_768)


def arrivals(name: str, replicas: int, cluster: Cluster, costs: StepCosts, size: Size) -> list[Arrival]:
    """Return the requests for ``replicas`` replicas, ordered by time; each replica's share has the load ``size.load``.

    Args:
        name: ``mixed``, ``heavy`` or ``sessions``.
        replicas: Number of replicas.
        cluster: One replica.
        costs: Step times of one replica.
        size: Size of one replica's share.
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
        # Without an offset, the long prompts of all shares would arrive together.
        offset = random_.uniform(0, horizon)
        found += [replace(arrival, at=(arrival.at + offset) % horizon) for arrival in each]
    return sorted(found, key=lambda arrival: arrival.at)


def long_share(requests: Sequence[Arrival], costs: StepCosts) -> float:
    """Return the share of the work due to prompts beyond the first factor set."""
    seconds = [work(costs, each.prompt, each.output) for each in requests]
    long = sum(second for second, each in zip(seconds, requests, strict=True) if each.prompt > FIRST_SET)
    return long / sum(seconds)


def _sessions(random_: random.Random, costs: StepCosts, size: Size, label: str) -> list[Arrival]:
    """Return conversations in which every turn's prompt begins with all earlier turns.

    Conversations that reach the end of the time span wrap around to its beginning, so that the load is constant. The wrapped
    part is a separate session, whose first turn has no cached prefix.
    """
    low, high = map(math.log, FIRST_PROMPT)
    sessions, busy = [], 0.0
    for _ in range(max(1, size.requests // TURNS)):
        prompt, turns = round(math.exp(random_.uniform(low, high))), []
        for _ in range(TURNS):
            turns.append((prompt, random_.randint(50, 300)))
            prompt += turns[-1][1] + random_.randint(*ADDED)
        busy += _seconds(costs, turns)
        sessions.append(turns)
    horizon = busy / size.load
    parts: dict[str, list[Arrival]] = {}
    for number, turns in enumerate(sessions):
        at = random_.uniform(0, horizon)
        for prompt, output in turns:
            name = f"{label}{number}-{int(at / horizon)}"
            parts.setdefault(name, []).append(Arrival(at % horizon, prompt, output, name))
            at += PAUSE / 2 + random_.expovariate(2 / PAUSE)
    busy = sum(_seconds(costs, [(each.prompt, each.output) for each in part]) for part in parts.values())
    slower = busy / size.load / horizon
    return [replace(each, at=each.at * slower) for part in parts.values() for each in part]


def _seconds(costs: StepCosts, turns: Sequence[tuple[int, int]]) -> float:
    """Return the hardware seconds of a session's turns, (prompt, output), if each finds the previous prompt cached."""
    found, before = 0.0, 0
    for prompt, output in turns:
        found += work(costs, prompt, output) - costs.prefill_seconds(before, CHUNK)
        before = prompt
    return found
