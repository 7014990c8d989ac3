"""Draws the times at which the requests of an open loop are due."""

import numpy as np

from ropeswitch.loadtests.client.workload import Arrival, Bursts, Gamma, Poisson


def due_times(arrival: Arrival, rate: float, count: int, seed: int) -> np.ndarray:
    """Return when ``count`` requests are due, in seconds since the run's start, in order.

    Poisson and gamma arrivals are scaled to take exactly ``count / rate`` seconds, as upstream does
    (``vllm.benchmarks.serve.get_request``), so that runs with different seeds have the same load.

    Args:
        arrival: A process with a rate.
        rate: Mean requests per second.
        count: Number of requests.
        seed: Random seed.
    """
    random = np.random.default_rng([seed, count])
    match arrival.rated:
        case Bursts(size=size):
            return (np.arange(count) // size) * (size / rate)
        case Gamma(burstiness=burstiness):
            intervals = random.gamma(burstiness, 1.0, size=count)
        case Poisson():
            intervals = random.exponential(1.0, size=count)
        case None:
            raise ValueError("this arrival process has no rate")
    times: np.ndarray = np.cumsum(intervals)
    # As upstream: the intervals of a very bursty process can all underflow to 0.
    return times * (count / rate / times[-1]) if times[-1] else times
