"""Requests of the front's workloads: single, mixed, heavy and crossing."""

import math
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ropeswitch.loadtests.scheduling.settings import WINDOW

# Maximum tokens of a short prompt; tokens of a chat's answer and of a long prompt's answer.
SHORT, CHAT_OUTPUT, LONG_OUTPUT = 512, 16, 16
CHATS = 24
# Tokens by which a crossing prompt ends before the limit, and by which its answer passes it.
BEFORE, BEHIND = 40, 40
CROSSINGS = 4
PARETO, PARETO_LEAST, PARETO_COUNT = 0.75, 50, 40


class Arrival(NamedTuple):
    """One request: its arrival in seconds, its prompt's tokens and its answer's."""

    at: float
    prompt: int
    output: int


def arrivals(name: str, prompt: int, alone: float, seed: int) -> list[Arrival]:
    """Return the requests of a workload, in order of arrival.

    Args:
        name: A key of :data:`WORKLOADS`.
        prompt: Tokens of the longest prompt.
        alone: Seconds that this prompt takes alone; scales the times, so that the load is the same on every machine.
        seed: Random seed for lengths and times.
    """
    return sorted(WORKLOADS[name](random.Random(seed), prompt, alone), key=lambda arrival: arrival.at)


def _chats(random_: random.Random, horizon: float) -> list[Arrival]:
    lengths = [round(math.exp(random_.uniform(math.log(50), math.log(SHORT)))) for _ in range(CHATS)]
    return [Arrival(random_.uniform(0, horizon), length, CHAT_OUTPUT) for length in lengths]


def _single(random_: random.Random, prompt: int, alone: float) -> list[Arrival]:
    horizon = 2 * alone
    return [*_chats(random_, horizon), Arrival(0.1 * horizon, prompt, LONG_OUTPUT)]


def _mixed(random_: random.Random, prompt: int, alone: float) -> list[Arrival]:
    horizon = 3 * alone
    longs = [(0.05, prompt // 2), (0.35, prompt), (0.65, prompt // 2)]
    return [*_chats(random_, horizon), *(Arrival(at * horizon, length, LONG_OUTPUT) for at, length in longs)]


def _heavy(random_: random.Random, prompt: int, alone: float) -> list[Arrival]:
    # Use a Pareto distribution's quantiles, so that every seed has the same work.
    end = 1 - (PARETO_LEAST / prompt) ** PARETO
    shares = [1 - end * i / (PARETO_COUNT - 1) for i in range(PARETO_COUNT)]
    lengths = [min(prompt, round(PARETO_LEAST * share ** (-1 / PARETO))) for share in shares]
    return [Arrival(random_.uniform(0, 2.5 * alone), length, CHAT_OUTPUT) for length in lengths]


def _crossing(random_: random.Random, prompt: int, alone: float) -> list[Arrival]:
    horizon = 2.5 * alone
    times = [random_.uniform(0, horizon) for _ in range(CROSSINGS)]
    return [*_chats(random_, horizon), *(Arrival(at, WINDOW - BEFORE, BEFORE + BEHIND) for at in times)]


WORKLOADS: Mapping[str, Callable[[random.Random, int, float], list[Arrival]]] = {
    "single": _single,
    "mixed": _mixed,
    "heavy": _heavy,
    "crossing": _crossing,
}
