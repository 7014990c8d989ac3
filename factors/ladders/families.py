"""Looks up facts about model families that a config does not state, from ``families.toml``, each with its source."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Window:
    """Window that a family was trained with.

    Attributes:
        tokens: Length of the window.
        name: Display name of the family.
        source: Where the length was published.
    """

    tokens: int
    name: str
    source: str


@dataclass(frozen=True)
class Training:
    """Whether a family was trained with the scaling in its config.

    Attributes:
        trained: False if users add the scaling for long texts.
        name: Display name of the family.
        source: Where this was published.
    """

    trained: bool
    name: str
    source: str


def window_of(config: Mapping[str, Any]) -> Window | None:
    """Return the native window of a text config's family, or None if the family is unknown."""
    for each in _data()["window"]:
        known = each["max_position_embeddings"] == config.get("max_position_embeddings")
        if known and config.get("model_type") in each["model_types"]:
            return Window(each["tokens"], each["name"], each["source"])
    return None


def training_of(config: Mapping[str, Any], rope_type: str) -> Training | None:
    """Return whether a text config's family was trained with ``rope_type``, or None if that is unknown."""
    each = _scaling(config, rope_type)
    return None if each is None else Training(each["trained"], each["name"], each["source"])


def states_scaled_length(config: Mapping[str, Any], rope_type: str) -> bool:
    """Return whether the maximum length in a family's config already includes the factor of ``rope_type``."""
    each = _scaling(config, rope_type)
    return each is not None and bool(each.get("scaled_length"))


def _scaling(config: Mapping[str, Any], rope_type: str) -> dict[str, Any] | None:
    for each in _data()["scaling"]:
        if config.get("model_type") in each["model_types"] and rope_type in each["rope_types"]:
            return each
    return None


@cache
def _data() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
