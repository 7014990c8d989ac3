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
        _digest([settings.theta, settings.angles, each.factors, each.scale, each.start_tokens, softmax])
        for each in settings.ladder.sets
        for softmax in [None if each.softmax_scale == 1 else each.softmax_scale]
    )


def salt_of(key: str, client_salt: str | None) -> str:
    """Return the ``cache_salt`` of a request in the set with this key; unique to the key and the client's salt.

    Args:
        key: One of :func:`set_keys`.
        client_salt: The salt that the client sent, or None.
    """
    return f"rope_set:{key}:{client_salt or ''}"


def key_part(salt: str) -> str:
    """Return the set's key from the result of :func:`salt_of`."""
    return salt.split(":", 2)[1]


def client_part(salt: str) -> str | None:
    """Return the client's salt from the result of :func:`salt_of`, or None."""
    return salt.split(":", 2)[2] or None


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
