"""Time series of a run's exchanges: requests in flight, tokens per second, and when a request outgrew its factor set."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ropeswitch.loadtests.client.records import Exchange

Floats = NDArray[np.float64]


def length(exchange: Exchange) -> int:
    """Return the prompt tokens as built, which determine its band."""
    return exchange.prompt_tokens


def end(exchange: Exchange) -> float:
    """Return when its last token arrived, or when it failed, in seconds since the run's start."""
    return exchange.sent + exchange.latency


def tpot(exchange: Exchange) -> float | None:
    """Return the seconds per token after the first, 0 without one, as in vLLM's benchmark; None if it was not streamed."""
    if exchange.ttft is None:
        return None
    if exchange.output_tokens < 2:
        return 0.0
    return (exchange.latency - exchange.ttft) / (exchange.output_tokens - 1)


def chunk_times(exchange: Exchange) -> Floats:
    """Return the arrival times of its chunks; an answer that was not streamed is one chunk at its end."""
    if exchange.ttft is not None:
        return exchange.sent + exchange.ttft + np.concatenate([[0.0], np.cumsum(exchange.itl)])
    return np.array([end(exchange)] if exchange.output_tokens else [])


def crossing(exchange: Exchange, limits: Sequence[int]) -> float | None:
    """Return when its sequence first outgrew a factor set's limit; None if it did not.

    Assumes that an answer's tokens are spread evenly over its chunks.
    """
    prompt, times = exchange.counted_prompt_tokens or exchange.prompt_tokens, chunk_times(exchange)
    if not len(times):
        return None
    for limit in sorted(limits):
        # The last token is never fed back to the model, so it does not extend the sequence.
        if prompt <= limit < prompt + exchange.output_tokens - 1:
            part = (limit + 1 - prompt) / exchange.output_tokens
            return float(times[min(int(part * len(times)), len(times) - 1)])
    return None


def in_flight(exchanges: Iterable[Exchange]) -> tuple[Floats, Floats]:
    """Return the times at which the number of requests in flight changed, and the number from then on."""
    steps = sorted((at, step) for e in exchanges for at, step in ((e.sent, 1), (end(e), -1)))
    times = np.array([0.0, *(at for at, _ in steps)])
    return times, np.cumsum([0.0, *(step for _, step in steps)])


def in_flight_at(exchanges: Iterable[Exchange], moments: Floats) -> Floats:
    """Return the requests in flight at each of the moments."""
    times, counts = in_flight(exchanges)
    # There are none before the first change.
    return np.concatenate([[0.0], counts])[np.searchsorted(times, moments, side="right")]


def bins(duration: float) -> Floats:
    """Return the edges of at most 120 equal spans of a run, each at least half a second long."""
    number = int(min(max(duration / 0.5, 1), 120))
    return np.linspace(0, max(duration, 1e-3), number + 1)


def output_rate(exchanges: Iterable[Exchange], edges: Floats) -> Floats:
    """Return output tokens/s in each span, assuming that an answer's tokens are spread evenly over its chunks."""
    total = np.zeros(len(edges) - 1)
    for exchange in exchanges:
        times = chunk_times(exchange)
        if len(times):
            # The last span includes its end.
            total += np.histogram(times, edges)[0] * (exchange.output_tokens / len(times))
    return total / np.diff(edges)


def prompt_rate(exchanges: Iterable[Exchange], edges: Floats) -> Floats:
    """Return prompt tokens/s in each span, with a prompt's tokens spread evenly from its sending to its first token."""
    total = np.zeros(len(edges) - 1)
    for exchange in exchanges:
        if exchange.status == "completed":
            first = exchange.latency if exchange.ttft is None else exchange.ttft
            done = np.clip((edges - exchange.sent) / max(first, 1e-9), 0, 1)
            total += np.diff(done) * length(exchange)
    return total / np.diff(edges)
