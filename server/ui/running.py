"""Lists the sequences in flight in one API server process, for the picture on the status page."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from pydantic import BaseModel, Field

from ropeswitch.server.metrics.instruments import WAITING
from ropeswitch.server.metrics.track import Track

# Maximum sequences to list, oldest first.
MOST = 2000
# Maximum seconds to wait for an engine, which answers between two steps; a long step may take more.
SECONDS = 0.5

Computed = Callable[[list[str]], Awaitable[dict[str, int]]]


class RunningSequence(BaseModel):
    """One sequence in flight."""

    number: int = Field(description="Unique in its API server process, and constant while the sequence runs.")
    prompt_tokens: int
    tokens: int = Field(description="Length so far: prompt and generated tokens.")
    factor_set: str
    state: Literal["queued", "prefilling", "decoding"]
    computed_tokens: int | None = Field(
        description="Prompt tokens computed or found in the prefix cache, as last reported by the engine; null before that."
    )


class RunningSequences:
    """Reads the sequences in flight.

    Args:
        states: ``vllm.v1.engine.output_processor.OutputProcessor.request_states``, each with its
            :class:`~ropeswitch.server.metrics.track.Track` as ``ropeswitch``.
        names: The names of the factor sets.
        computed: Returns the computed prompt tokens of engine requests, by internal ID.
    """

    def __init__(self, states: Mapping[str, Any], names: Sequence[str], computed: Computed) -> None:
        self._states = states
        self._names = names
        self._computed = computed
        # At most one call is pending, so that a hung engine gets no more of them.
        self._asking: asyncio.Task[dict[str, int]] | None = None
        self._known: dict[str, int] = {}

    @property
    def total(self) -> int:
        return len(self._states)

    async def read(self) -> list[RunningSequence]:
        """Return at most :data:`MOST` sequences, in order of arrival. Runs on the event loop that changes the states."""
        states = dict(islice(self._states.items(), MOST))
        waiting = [key for key, state in states.items() if _waits(state.ropeswitch)]
        if waiting:
            await self._ask(waiting)
        # Some have ended in the meantime.
        return [self._sequence(key, state) for key, state in states.items() if state.ropeswitch.live is not None]

    async def _ask(self, waiting: list[str]) -> None:
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._computed(waiting))
        done, _ = await asyncio.wait({self._asking}, timeout=SECONDS)
        if done:
            asking, self._asking = self._asking, None
            known = {key: tokens for key, tokens in self._known.items() if key in waiting}
            self._known = known | asking.result()

    def _sequence(self, key: str, state: Any) -> RunningSequence:
        track: Track = state.ropeswitch
        waits = _waits(track)
        done = self._known.get(key) if waits else state.prompt_len
        return RunningSequence(
            number=track.number,
            prompt_tokens=state.prompt_len,
            tokens=state.prompt_len + track.stats.num_generation_tokens,
            factor_set=self._names[track.band_set[1]],
            state=("prefilling" if done else "queued") if waits else "decoding",
            computed_tokens=done,
        )


def _waits(track: Track) -> bool:
    return track.live is not None and track.live[1] == WAITING
