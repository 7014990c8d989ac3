"""Simulated requests: arrival times, prompt lengths and answer lengths, all seeded."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ropeswitch.deploy.plan.costs import BLOCK_SIZE
from ropeswitch.loadtests.simulation.cluster import Cluster
from ropeswitch.loadtests.simulation.costs import StepCosts

# Chunk size and batch size for computing a request's share of the hardware, which determines the load.
CHUNK, BATCH = 8192, 32
# With scarce memory, space in addition to the longest prompt: a share of its length, and a minimum in tokens.
SPARE_SHARE, LEAST_SPARE = 1 / 64, 8192
# Limit of the first factor set, and maximum length of a short prompt.
FIRST_SET, SHORT = 8192, 2048


@dataclass(frozen=True)
class Arrival:
    """One request.

    Attributes:
        at: Arrival time, in seconds.
        prompt: Prompt tokens.
        output: Output tokens.
        session: Requests of one session share their prefix; None for a request that shares none.
    """

    at: float
    prompt: int
    output: int
    session: str | None = None


@dataclass(frozen=True)
class Workload:
    """Requests ordered by arrival, and the KV memory available to them.

    Attributes:
        name: A key of :data:`WORKLOADS`.
        about: One-line description.
        arrivals: The requests.
        kv_blocks: Usable KV blocks of the cluster.
    """

    name: str
    about: str
    arrivals: tuple[Arrival, ...]
    kv_blocks: int


@dataclass(frozen=True)
class Size:
    """The size of a workload.

    Attributes:
        requests: Number of short requests, or of all requests if lengths come from one distribution.
        longest: Tokens of the longest prompt.
        load: Share of time the requests keep the hardware busy if each runs by itself.
        seed: Random seed.
    """

    requests: int
    longest: int
    load: float
    seed: int


def make_workload(name: str, cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Return the workload called ``name``, a key of :data:`WORKLOADS`."""
    return WORKLOADS[name](cluster, costs, size)


def work(costs: StepCosts, prompt: int, output: int) -> float:
    """Return a request's hardware seconds: its prefill alone, plus its share of decoding steps with 32 such requests."""
    decode = costs.seconds([(prompt, 1)] * BATCH) / BATCH
    return costs.prefill_seconds(prompt, CHUNK) + output * decode


def mixed(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Return chats and three evenly spaced long prompts, of half the longest, the longest and half the longest length."""
    random_ = random.Random(size.seed)
    shorts = [_chat(random_) for _ in range(size.requests)]
    longs = [(size.longest // 2, 64), (size.longest, 64), (size.longest // 2, 64)]
    horizon = _horizon(costs, size, shorts + longs)
    arrivals = _poisson(random_, horizon, shorts)
    arrivals += [Arrival(horizon * (0.05 + 0.3 * i), *long) for i, long in enumerate(longs)]
    return _workload("mixed", f"chats of 100 to 2k tokens, and prompts of {size.longest // 2} and {size.longest} tokens",
                     cluster, arrivals)  # fmt: skip


def single(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Return chats and one long prompt."""
    random_ = random.Random(size.seed)
    shorts = [_chat(random_) for _ in range(size.requests)]
    long = (size.longest, 64)
    horizon = _horizon(costs, size, [*shorts, long])
    arrivals = [*_poisson(random_, horizon, shorts), Arrival(0.05 * horizon, *long)]
    return _workload("single", f"chats of 100 to 2k tokens, and a prompt of {size.longest}", cluster, arrivals)


def heavy(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Return requests with truncated Pareto lengths, taken as quantiles so that every seed has the same work."""
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
    """Return one long prompt and 64 chats that arrive at once, the long one first."""
    random_ = random.Random(size.seed)
    arrivals = [Arrival(0.0, size.longest, 64)] + [Arrival(0.0, *_chat(random_)) for _ in range(64)]
    return _workload("burst", f"a prompt of {size.longest} tokens and 64 chats at once", cluster, arrivals)


def full(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Return chats and a longest prompt that barely fits into memory while another request holds a quarter of its length."""
    random_ = random.Random(size.seed)
    shorts = [_chat(random_) for _ in range(size.requests)]
    # The other request's answer takes a tenth of the time of the long prompt's prefill.
    seconds = 0.1 * costs.prefill_seconds(size.longest, CHUNK)
    output = math.ceil(seconds / costs.seconds([(size.longest // 4, 1)]))
    holder, long = (size.longest // 4, output), (size.longest, 64)
    horizon = _horizon(costs, size, [*shorts, holder, long])
    arrivals = _poisson(random_, horizon, shorts)
    # The long prompt arrives while the other request decodes, and fits only once that and most chats are done.
    decoding = costs.prefill_seconds(holder[0], CHUNK)
    arrivals += [Arrival(0.0, *holder), Arrival(1.2 * decoding + 1.0, *long)]
    spare = max(LEAST_SPARE, round(SPARE_SHARE * size.longest))
    blocks = min(math.ceil((size.longest + 64 + spare) / BLOCK_SIZE) + 1, cluster.kv_blocks)
    about = f"KV memory for {(blocks - 1) * BLOCK_SIZE} tokens, of which {holder[0]} are in use when a prompt of "
    return _workload("full", f"{about}{size.longest} tokens arrives; chats continue", cluster, arrivals, blocks)


def crossing(cluster: Cluster, costs: StepCosts, size: Size) -> Workload:
    """Return chats, and as many requests that outgrow the first factor set of 8,192 tokens while decoding."""
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
    """Return a chat's prompt and output tokens; prompt lengths are log-uniform, because short ones are most frequent."""
    return round(math.exp(random_.uniform(math.log(100), math.log(2048)))), random_.randint(50, 300)


def _horizon(costs: StepCosts, size: Size, requests: list[tuple[int, int]]) -> float:
    """Return the seconds over which the requests must arrive to produce the load."""
    return sum(work(costs, *request) for request in requests) / size.load


def _poisson(random_: random.Random, horizon: float, requests: list[tuple[int, int]]) -> list[Arrival]:
    """Return Poisson arrivals; given their number, arrival times are uniform."""
    return [Arrival(random_.uniform(0, horizon), *request) for request in requests]


def _workload(
    name: str, about: str, cluster: Cluster, arrivals: list[Arrival], kv_blocks: int | None = None
) -> Workload:
    ordered = sorted(arrivals, key=lambda arrival: arrival.at)
    # More than twice the blocks that all requests need changes nothing and takes time to allocate.
    enough = 1 + 2 * sum(math.ceil((arrival.prompt + arrival.output) / BLOCK_SIZE) for arrival in arrivals)
    return Workload(name, about, tuple(ordered), min(cluster.kv_blocks, enough) if kv_blocks is None else kv_blocks)
