"""Keys that identify factor sets by their effect on cached keys, for the prefix cache and stores outside the engine.

Sets that rotate alike have equal keys in all engines and ladders, regardless of their names and ends.
"""

import hashlib
import json
from typing import Any

from ropeswitch.model_patches.switch.config.settings import RopeSettings


def set_keys(settings: RopeSettings) -> tuple[str, ...]:
    """Return one key per set of the ladder: truncated SHA-256 of everything that decides its cached keys' angles and scales.

    Softmax scales other than 1 are included: they change a layer's output, and so the next layer's cached keys.
    """
    return tuple(
        _digest([settings.theta, settings.angles, each.factors, each.scale, each.start_tokens, softmax, *layers])
        for each in settings.ladder.sets
        for softmax in [None if each.softmax_scale == 1 else each.softmax_scale]
        for layers in [[(layer.factors, layer.scale) for layer in each.layers]]
    )


def ladder_digest(settings: RopeSettings) -> str:
    """Return a digest that is equal on two engines that rotate every request alike."""
    return _digest([*set_keys(settings), *(each.max_length for each in settings.ladder.sets)])


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
