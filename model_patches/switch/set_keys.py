"""Keys that identify factor sets by what they do to cached keys, for the prefix cache and for stores outside the engine.

Two engines, or two ladders of one engine, give equal sets equal keys, whatever their names and ends.
"""

import hashlib
import json
from typing import Any

from ropeswitch.model_patches.switch.settings import RopeSettings


def set_keys(settings: RopeSettings) -> tuple[str, ...]:
    """One key per set of the ladder: a SHA-256 of all that decides the angles and scales of its cached keys.

    Softmax scales count too: they change a layer's output, and so the cached keys of the next layer.
    """
    return tuple(
        _digest([settings.theta, settings.angles, each.factors, each.scale, each.start_tokens, each.softmax_scale])
        for each in settings.ladder.sets
    )


def salt_of(key: str, client_salt: str | None) -> str:
    """The ``cache_salt`` of a request in the set with this key; no other key and client's salt have the same.

    Args:
        key: One of :func:`set_keys`.
        client_salt: The salt that the client sent, if any.
    """
    return f"rope_set:{key}:{client_salt or ''}"


def client_part(salt: str) -> str | None:
    """The client's salt in one of :func:`salt_of`."""
    return salt.split(":", 2)[2] or None


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
