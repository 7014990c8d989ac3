"""Ladders, placements and requests of an API server, for its tests."""

import time
from typing import Any

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import PLACEMENT, RopeSettings
from ropeswitch.model_patches.switch.placement import EngineLadder, Placement


def engine_ladder(sets: FactorLadder, policy: str = "length", most: int | None = None) -> EngineLadder:
    """The ladder of an engine of these sets whose sequences have at most ``most`` tokens."""
    return EngineLadder.of(RopeSettings(sets, 1e4, policy=policy), most)


def engine_request(
    name: str, prompt: int, params: SamplingParams, cache_salt: str | None = None, resumable: bool = False
) -> EngineCoreRequest:
    """A request that arrived 2 s ago, as an API server sends it to an engine."""
    arrival = time.time() - 2.0
    ids = [5] * prompt
    made = EngineCoreRequest(name, ids, None, params, None, arrival, None, cache_salt, None, resumable=resumable)
    made.external_req_id = name
    return made


def chosen(placement: Placement) -> tuple[str, str]:
    """The set's name and what chose it."""
    return placement.name, placement.chosen_by


def carried(params: Any) -> Placement:
    """The placement that parameters carry from the engine client to its input processor."""
    extra = getattr(params, "extra_args", None) or params.extra_kwargs
    placement = extra[PLACEMENT]
    assert isinstance(placement, Placement)
    return placement
