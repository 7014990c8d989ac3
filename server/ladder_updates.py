"""Replaces and adds ladders while the server runs: all workers of all engines load the new ladder, or nothing changes.

First, every worker loads the ladder's sets in addition to those in use. Then this process assigns new requests to the
ladder, passing its ID to the engine. Finally, every engine activates it, for requests without an ID and for those to
recompute. No request uses the loaded sets before the second step, so a failure to load them leaves the ladders unchanged.
"""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.factor_set import NAME_CHARACTERS, FactorLadder
from ropeswitch.factors.file import from_values
from ropeswitch.factors.quoted import quoted
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.server.ladders import ServedLadders, ServedRule
from ropeswitch.server.length_metrics.outputs import OutputWatch
from ropeswitch.server.rope_route import LadderInfo, RopeInfo, set_infos

FINISH, RECOMPUTE = RUNNING = ("finish", "recompute")
# Maximum named ladders, and sets of one ladder: half of the workers' table, so that the old and the new one fit.
MOST_LADDERS = 16
MOST_SETS = 32
# Speculative methods without a draft model. A draft model's rotary modules keep the startup ladder.
DRAFTLESS = ("ngram", "ngram_gpu", "suffix")


class UpdateError(Exception):
    """Raised when an engine did not load a ladder; all ladders are unchanged.

    Attributes:
        full: Whether the workers have no room for it at present; otherwise a worker failed.
    """

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full


@dataclass(frozen=True)
class Update:
    """A ladder to serve.

    Attributes:
        ladder: Its sets.
        name: Its name; empty for the default ladder.
        recompute: Whether requests in the ladder that it replaces continue in it.
    """

    ladder: FactorLadder
    name: str
    recompute: bool


class LadderUpdates:
    """Replaces, adds and drops ladders; one per API server process.

    Args:
        engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``.
        settings: The engine's settings.
        ladders: The ladders that the process serves.
        info: The response of ``/v1/rope``, which is kept up to date.
    """

    def __init__(self, engine_client: Any, settings: RopeSettings, ladders: ServedLadders, info: RopeInfo) -> None:
        self._client = engine_client
        self._settings = settings
        self._ladders = ladders
        self._info = info
        self._lock = asyncio.Lock()

    def read(self, body: Mapping[str, Any]) -> Update:
        """Parse and check the body of a request that serves a ladder.

        Args:
            body: A factor file's fields, ``name`` and ``running``.

        Raises:
            FactorError: naming the field, the value and what is allowed.
        """
        name, running = body.get("name"), body.get("running", FINISH)
        if name is not None:
            check_name(name)
        if running not in RUNNING:
            raise FactorError(f"running: {quoted(running)} must be one of {', '.join(RUNNING)}")
        file = from_values({field: value for field, value in body.items() if field not in ("name", "running")})
        if file.theta not in (None, self._settings.theta):
            raise FactorError(
                f"rope_theta: {file.theta} must equal the model's, {self._settings.theta}, or be left out"
            )
        self._check(file.ladder)
        return Update(file.ladder, name or "", running == RECOMPUTE)

    def _check(self, ladder: FactorLadder) -> None:
        """Refuse a ladder that the running engine cannot use."""
        start, longest = self._settings.ladder, self._ladders.start.max_model_len
        if len(ladder.sets) > MOST_SETS:
            raise FactorError(f"sets: {len(ladder.sets)} sets; at most {MOST_SETS} are allowed")
        if ladder.rotary_dim != start.rotary_dim:
            raise FactorError(
                f"sets[0].factors: {ladder.rotary_dim // 2} factors; the model needs {start.rotary_dim // 2}, one for each "
                "rotary frequency"
            )
        if longest is not None and ladder.max_length < longest:
            raise FactorError(
                f"sets[{len(ladder.sets) - 1}].max_length: {ladder.max_length} must be at least {longest}, the server's "
                "--max-model-len, which is fixed at startup"
            )
        stated = all(each.softmax_scale is not None for each in start.sets)
        for index, each in enumerate(ladder.sets):
            if stated and each.softmax_scale is None:
                raise FactorError(f"sets[{index}].softmax_scale: missing; this model's ladders need one in every set")
            if each.softmax_scale not in (None, 1.0) and not start.scales_softmax:
                raise FactorError(
                    f"sets[{index}].softmax_scale: {each.softmax_scale} is not supported: no set of the startup ladder "
                    "scales the softmax; restart the server with this ladder instead"
                )

    async def serve(self, update: Update) -> int:
        """Serve a ladder from now on, in place of the one with its name.

        Returns:
            The number of requests that continue in it.

        Raises:
            FactorError: when there are too many ladders.
            UpdateError: when an engine did not load it.
        """
        # A client that disconnects cancels its own request, not the update.
        return await asyncio.shield(asyncio.ensure_future(self._serve(update)))

    async def _serve(self, update: Update) -> int:
        async with self._lock:
            ladders = self._ladders
            if update.name and update.name not in ladders.named and len(ladders.named) >= MOST_LADDERS:
                raise FactorError(
                    f"name: {update.name!r} would be ladder {MOST_LADDERS + 1} of at most {MOST_LADDERS}; drop one first"
                )
            ladder_id = uuid.uuid4().hex
            errors = await self._all("load_ladder", ladder_id, update.name, update.ladder.to_json())
            if error := next(filter(None, errors), None):
                raise UpdateError(error, full=error.startswith("sets:"))
            rule = ladders.make(ladders.start, ladder_id, update.name, update.ladder)
            ladders.use(rule)
            self._show()
            moved = [each for ids in await self._all("use_ladder", ladder_id, update.recompute) for each in ids]
            self._note(moved, rule)
            return len(moved)

    async def drop(self, name: str) -> bool:
        """Stop serving a named ladder; its requests finish. Return False if it does not exist."""
        async with self._lock:
            if name not in self._ladders.named:
                return False
            self._ladders.drop(name)
            self._show()
            await self._all("drop_ladder", name)
            return True

    async def _all(self, utility: str, *arguments: Any) -> list[Any]:
        answers: list[Any] = await self._client.engine_core.call_utility_all_async(utility, *arguments)
        return answers

    def _show(self) -> None:
        default, start = self._ladders.default, self._ladders.start
        self._info.sets = set_infos(default.ladder, self._settings.origins if default is start else ())
        self._info.ladders = [
            LadderInfo(name=each.name, sets=set_infos(each.ladder)) for each in self._ladders.named.values()
        ]

    def _note(self, moved: list[str], rule: ServedRule) -> None:
        processor = self._client.output_processor
        watch: OutputWatch | None = processor.ropeswitch
        for request_id in moved:
            if watch is not None and (state := processor.request_states.get(request_id)) is not None:
                watch.move(state, rule)


def check_name(name: object) -> None:
    """Refuse an invalid ladder name.

    Raises:
        FactorError: with the value and what is allowed.
    """
    fits = isinstance(name, str) and name and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    if not fits:
        raise FactorError(f"name: {quoted(name)} must be a non-empty string of {NAME_CHARACTERS}, or be left out")
    if len(str(name)) > 64:
        raise FactorError(f"name: {len(str(name))} characters; at most 64 are allowed")
