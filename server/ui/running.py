"""The sequences in flight in one API server process, one by one, for the picture of the status page."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from pydantic import BaseModel, Field

from ropeswitch.server.length_metrics.instruments import WAITING
from ropeswitch.server.length_metrics.track import Track

# The oldest come first.
MOST = 2000
# An engine answers between two steps. The page does not wait for a long one.
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
        description="Prompt tokens computed or found in the prefix cache; null where the engine took more than 0.5 s."
    )
    switches: int = Field(description="Switches of factor sets so far.")


@dataclass(frozen=True)
class RunningSequences:
    """Reads the sequences in flight.

    Attributes:
        states: ``vllm.v1.engine.output_processor.OutputProcessor.request_states``, each with its
            :class:`~ropeswitch.server.length_metrics.track.Track` as ``ropeswitch``.
        names: The names of all factor sets that were ever served; see ``ServedLadders.names``.
        computed: Returns the computed prompt tokens of engine requests, by internal ID.
    """

    states: Mapping[str, Any]
    names: Sequence[str]
    computed: Computed

    async def read(self) -> list[RunningSequence]:
        """At most :data:`MOST` sequences, in the order of their arrival. Runs on the loop that changes the states."""
        tracks: dict[str, Track] = {key: state.ropeswitch for key, state in islice(self.states.items(), MOST)}
        waiting = [key for key, track in tracks.items() if _waits(track)]
        computed: dict[str, int] | None = {}
        if waiting:
            try:
                computed = await asyncio.wait_for(self.computed(waiting), SECONDS)
            except TimeoutError:
                computed = None
        return [self._sequence(key, track, computed) for key, track in tracks.items()]

    def _sequence(self, key: str, track: Track, computed: dict[str, int] | None) -> RunningSequence:
        done: int | None = track.prompt
        state: Literal["queued", "prefilling", "decoding"] = "decoding"
        if _waits(track):
            done = None if computed is None else computed.get(key, 0)
            state = "prefilling" if done else "queued"
        return RunningSequence(
            number=track.number,
            prompt_tokens=track.prompt,
            tokens=track.prompt + track.stats.num_generation_tokens,
            factor_set=self.names[track.band_set[1]],
            state=state,
            computed_tokens=done,
            switches=len(track.later),
        )


def _waits(track: Track) -> bool:
    return track.live is not None and track.live[1] == WAITING
