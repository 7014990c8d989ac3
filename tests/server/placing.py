"""Ladders and placements of an API server, for its tests."""

from typing import Any

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import PLACEMENT, RopeSettings
from ropeswitch.model_patches.switch.placement import EngineLadder, Placement


def engine_ladder(sets: FactorLadder, policy: str = "length", most: int | None = None) -> EngineLadder:
    """The ladder of an engine of these sets whose sequences have at most ``most`` tokens."""
    return EngineLadder.of(RopeSettings(sets, 1e4, policy=policy), most)


def chosen(placement: Placement) -> tuple[str, str]:
    """The set's name and what chose it."""
    return placement.name, placement.chosen_by


def carried(params: Any) -> Placement:
    """The placement that parameters carry from the engine client to its input processor."""
    extra = getattr(params, "extra_args", None) or params.extra_kwargs
    placement = extra[PLACEMENT]
    assert isinstance(placement, Placement)
    return placement
