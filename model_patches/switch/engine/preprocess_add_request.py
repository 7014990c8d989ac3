"""``vllm.v1.engine.core.EngineCore.preprocess_add_request``: wrapped to assign a request's set before it is hashed.

replaces: the step that turns a client's message into a ``Request``, whose constructor hashes the prompt's blocks.
why: deciding the set afterwards would hash a two-million-token prompt twice, on the engine's main loop.
what differs: the engine's block hasher first assigns a set to a request that has none (``request_set.py``); without a prefix
    cache it does nothing else. A request for an unknown set fails here, where upstream ends only that request.
limits: none known.
when it can go: when requests can carry their own extra hash keys.
"""

from collections.abc import Callable
from typing import Any

from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.placement import EngineLadder, place, wanted_set


class AssigningHasher:
    """A block hasher that assigns a new request's factor set before it hashes block 0."""

    def __init__(self, upstream: Callable[[Any], list[Any]] | None, ladder: EngineLadder) -> None:
        self._upstream = upstream
        self._ladder = ladder

    def __call__(self, request: Any) -> list[Any]:
        if not hasattr(request, "rope_set"):
            place(request, wanted_set(request, self._ladder.rule), self._ladder.keys)
        return [] if self._upstream is None else self._upstream(request)


def assigning(upstream: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap ``EngineCore.preprocess_add_request``."""

    def preprocess_add_request(self: Any, request: Any) -> Any:
        hasher = self.request_block_hasher
        if not isinstance(hasher, AssigningHasher) and settings_of(self.vllm_config) is not None:
            self.request_block_hasher = AssigningHasher(hasher, self.scheduler.ladder)
        return upstream(self, request)

    return preprocess_add_request
