"""Time series of a run's exchanges: requests in flight, tokens per second, and when a request outgrew its factor set."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ropeswitch.loadtests.client.records import Exchange

Floats = NDArray[np.float64]


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


def crosses(exchange: Exchange, limits: Sequence[int]) -> bool:
    """Return whether its sequence outgrew a factor set's limit; its last token is never fed back to the model."""
    prompt = exchange.counted_prompt_tokens or exchange.prompt_tokens
    return any(prompt <= limit < prompt + exchange.output_tokens - 1 for limit in limits)


def changes(spans: Iterable[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Return the times at which the number of open spans changed, and the number from then on."""
    steps = sorted((at, step) for start, stop in spans for at, step in ((start, 1), (stop, -1)))
    times = np.array([0.0, *(at for at, _ in steps)])
    return times, np.cumsum([0.0, *(step for _, step in steps)])


def bins(duration: float) -> Floats:
    """Return the edges of at most 120 equal parts of a run, each at least half a second long."""
    number = int(min(max(duration / 0.5, 1), 120))
    return np.linspace(0, max(duration, 1e-3), number + 1)


def output_rate(exchanges: Iterable[Exchange], edges: Floats) -> Floats:
    """Return output tokens/s in each part, assuming that an answer's tokens are spread evenly over its chunks."""
    total = np.zeros(len(edges) - 1)
    for exchange in exchanges:
        times = chunk_times(exchange)
        if len(times):
            # The last part includes its end.
            total += np.histogram(times, edges)[0] * (exchange.output_tokens / len(times))
    return total / np.diff(edges)


def prompt_rate(exchanges: Iterable[Exchange], edges: Floats) -> Floats:
    """Return prompt tokens/s in each part, with a prompt's tokens spread evenly from its sending to its first token."""
    total = np.zeros(len(edges) - 1)
    for exchange in exchanges:
        if exchange.status == "completed":
            first = exchange.latency if exchange.ttft is None else exchange.ttft
            done = np.clip((edges - exchange.sent) / max(first, 1e-9), 0, 1)
            total += np.diff(done) * exchange.prompt_tokens
    return total / np.diff(edges)
