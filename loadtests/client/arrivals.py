"""When the requests of an open loop are due."""

import numpy as np

from ropeswitch.loadtests.client.workload import Arrival, Bursts, Gamma, Poisson


def due_times(arrival: Arrival, rate: float, count: int, seed: int) -> np.ndarray:
    """Seconds since the run's start at which ``count`` requests are due, in order.

    Poisson arrivals and those of a gamma process are scaled to take ``count / rate`` seconds exactly, as upstream does
    (``vllm.benchmarks.serve.get_request``), so that runs of different seeds have the same load.

    Args:
        arrival: A process that a rate drives.
        rate: Requests a second in the mean.
        count: How many.
        seed: Of the random numbers.
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
    # As upstream: intervals of a very bursty process can all be too small for a number, and stay 0.
    return times * (count / rate / times[-1]) if times[-1] else times
