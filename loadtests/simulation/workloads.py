"""Requests to simulate: arrival times, prompt lengths and answer lengths, all seeded."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ropeswitch.deploy.plan.costs import BLOCK_SIZE
from ropeswitch.loadtests.simulation.cluster import Cluster
from ropeswitch.loadtests.simulation.costs import StepCosts

# Chunk and batch at which a request's own share of the hardware is counted for the load.
CHUNK, BATCH = 8192, 32
# Where memory is scarce, there is so much beside the longest prompt: this part of its length, and at least so many tokens.
SPARE_SHARE, LEAST_SPARE = 1 / 64, 8192
# End of the first factor set, and of the prompts that count as short.
FIRST_SET, SHORT = 8192, 2048


@dataclass(frozen=True)
class Arrival:
    """One request.

    Attributes:
        at: When it arrives, seconds.
        prompt: Tokens of the prompt.
        output: Tokens that it will say.
        session: Requests of one session share their prefix; None for a request that shares none.
    """

    at: float
    prompt: int
    output: int
    session: str | None = None


@dataclass(frozen=True)
class Workload:
    """What arrives, in order of time, and how much KV memory there is for it.

    Attributes:
        name: A key of :data:`WORKLOADS`.
        about: One line on what it is.
        arrivals: The requests.
        kv_blocks: KV blocks of the cluster that may be used.
    """

    name: str
    about: str
    arrivals: tuple[Arrival, ...]
    kv_blocks: int


@dataclass(frozen=True)
class Size:
    """How much of a workload to make.

    Attributes:
        requests: Short requests, or all of them where lengths are drawn from one distribution.
        longest: Tokens of the longest prompt.
        load: The share of time that the requests keep the hardware busy, if each computes by itself.
        seed: Of the random numbers.
    """

    requests: int
    longest: int
    load: float
    seed: int


def make_workload(name: str, cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """The workload called ``name``, a key of :data:`WORKLOADS`."""
    return WORKLOADS[name](cluster, costs, size)


def work(costs: StepCosts, prompt: int, output: int) -> float:
    """Seconds of hardware that a request takes: its prefill alone, and its part of decoding steps of 32 requests like it."""
    decode = costs.seconds([(prompt, 1)] * BATCH) / BATCH
    return costs.prefill_seconds(prompt, CHUNK) + output * decode


def mixed(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Chats, and every so often a prompt of the longest or half the longest length, evenly spaced."""
    random_ = random.Random(size.seed)
    shorts = [_chat(random_) for _ in range(size.requests)]
    longs = [(size.longest // 2, 64), (size.longest, 64), (size.longest // 2, 64)]
    horizon = _horizon(costs, size, shorts + longs)
    arrivals = _poisson(random_, horizon, shorts)
    arrivals += [Arrival(horizon * (0.05 + 0.3 * i), *long) for i, long in enumerate(longs)]
    return _workload("mixed", f"chats of 100 to 2k tokens, and prompts of {size.longest // 2} and {size.longest} tokens",
                     cluster, arrivals)  # fmt: skip


def single(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """One long prompt among chats."""
    random_ = random.Random(size.seed)
    shorts = [_chat(random_) for _ in range(size.requests)]
    long = (size.longest, 64)
    horizon = _horizon(costs, size, [*shorts, long])
    arrivals = [*_poisson(random_, horizon, shorts), Arrival(0.05 * horizon, *long)]
    return _workload("single", f"chats of 100 to 2k tokens, and a prompt of {size.longest}", cluster, arrivals)


def heavy(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Prompt lengths of a Pareto distribution, cut at both ends; its quantiles, so that every seed brings the same work."""
    random_ = random.Random(size.seed)
    shape, low = 0.75, 100
    end = 1 - (low / size.longest) ** shape
    quantiles = [end * i / (size.requests - 1) for i in range(size.requests)]
    lengths = [min(size.longest, round(low * (1 - q) ** (-1 / shape))) for q in quantiles]
    requests = [(length, random_.randint(20, 100)) for length in lengths]
    random_.shuffle(requests)
    arrivals = _poisson(random_, _horizon(costs, size, requests), requests)
    return _workload(
        "heavy", f"Pareto lengths (exponent {shape}) from {low} to {size.longest} tokens", cluster, arrivals
    )


def burst(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """One long prompt and 64 chats at once, the long one first in line."""
    random_ = random.Random(size.seed)
    arrivals = [Arrival(0.0, size.longest, 64)] + [Arrival(0.0, *_chat(random_)) for _ in range(64)]
    return _workload("burst", f"a prompt of {size.longest} tokens and 64 chats at once", cluster, arrivals)


def full(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Memory for little more than the longest prompt, which meets one that holds a quarter of it; chats keep arriving."""
    random_ = random.Random(size.seed)
    shorts = [_chat(random_) for _ in range(size.requests)]
    # Its answer lasts a tenth of the long prompt's prefill.
    seconds = 0.1 * costs.prefill_seconds(size.longest, CHUNK)
    output = math.ceil(seconds / costs.seconds([(size.longest // 4, 1)]))
    holder, long = (size.longest // 4, output), (size.longest, 64)
    horizon = _horizon(costs, size, [*shorts, holder, long])
    arrivals = _poisson(random_, horizon, shorts)
    # The long one arrives while the other decodes, and fits only once that one and most chats are done.
    decoding = costs.prefill_seconds(holder[0], CHUNK)
    arrivals += [Arrival(0.0, *holder), Arrival(1.2 * decoding + 1.0, *long)]
    spare = max(LEAST_SPARE, round(SPARE_SHARE * size.longest))
    blocks = min(math.ceil((size.longest + 64 + spare) / BLOCK_SIZE) + 1, cluster.kv_blocks)
    about = f"KV memory for {(blocks - 1) * BLOCK_SIZE} tokens, of which {holder[0]} are taken when a prompt of "
    return _workload("full", f"{about}{size.longest} tokens comes; chats go on", cluster, arrivals, blocks)


def crossing(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Chats, and as many requests that outgrow the first factor set, of 8,192 tokens, while they generate."""
    random_ = random.Random(size.seed)
    requests = [_chat(random_) for _ in range(size.requests)]
    for _ in range(size.requests):
        prompt = random_.randint(6500, 8000)
        requests.append((prompt, FIRST_SET - prompt + random_.randint(100, 400)))
    arrivals = _poisson(random_, _horizon(costs, size, requests), requests)
    return _workload("crossing", f"half of them outgrow the factor set of {FIRST_SET} tokens", cluster, arrivals)


WORKLOADS: Mapping[str, Callable[[Cluster, StepCosts, Size], Workload]] = {
    "single": single,
    "mixed": mixed,
    "heavy": heavy,
    "burst": burst,
    "full": full,
    "crossing": crossing,
}


def _chat(random_: random.Random) -> tuple[int, int]:
    """Prompt and output of a chat: lengths spread evenly on a logarithmic scale, as short ones are the most frequent."""
    return round(math.exp(random_.uniform(math.log(100), math.log(2048)))), random_.randint(50, 300)


def _horizon(costs: StepCosts, size: Size, requests: list[tuple[int, int]]) -> float:
    """Seconds over which the requests must arrive to make the load."""
    return sum(work(costs, *request) for request in requests) / size.load


def _poisson(random_: random.Random, horizon: float, requests: list[tuple[int, int]]) -> list[Arrival]:
    """Arrivals of a Poisson process, given how many there are: their times are uniform."""
    return [Arrival(random_.uniform(0, horizon), *request) for request in requests]


def _workload(
    name: str, about: str, cluster: Cluster, arrivals: list[Arrival], kv_blocks: int | None = None
) -> Workload:
    ordered = sorted(arrivals, key=lambda arrival: arrival.at)
    # Blocks beyond twice what all requests together need change nothing, and take time to make.
    enough = 1 + 2 * sum(math.ceil((arrival.prompt + arrival.output) / BLOCK_SIZE) for arrival in arrivals)
    return Workload(name, about, tuple(ordered), min(cluster.kv_blocks, enough) if kv_blocks is None else kv_blocks)
