"""Settings of a patched engine: the ladder and its options, carried to every process in ``VllmConfig.additional_config``.

``additional_config``, ``scheduler_cls`` and ``worker_cls`` are vLLM's documented seams. The classes are named by import
path, so engine cores and workers find our code wherever they are started.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.ladders.made import Origin
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.parts import PARTS

ANGLES = ("exact", "hf")
# Maximum step latency target, in seconds.
MOST_STEP_SECONDS = 60.0
SCHEDULER = "ropeswitch.model_patches.switch.engine.scheduler.make_scheduler"
# The worker for each supported device type.
WORKERS = {
    "cpu": "ropeswitch.model_patches.switch.engine.cpu_worker.LadderCPUWorker",
    "cuda": "ropeswitch.model_patches.switch.engine.gpu_worker.LadderGPUWorker",
}
# Field of a request's `vllm_xargs` (SamplingParams.extra_args) that forces a set by name.
FORCED_SET = "rope_factor_set"
# When a sequence moves up the ladder: at its actual length, or at once to the set for its prompt and output limit.
BY_LENGTH, RESERVE = POLICIES = ("length", "reserve")
# Field of a request's `vllm_xargs` that chooses its policy.
LADDER_POLICY = "rope_ladder_policy"
# Field of `extra_args` or `extra_kwargs` in which a request carries its placement to the engine (placement.py).
PLACEMENT = "rope_placement"
# Field that a proxy adds to a prefill-only request's `kv_transfer_params`: the output limit of the decoding request.
ANSWER_LIMIT = "rope_max_tokens"
ANSWER_LIMIT_FIELD = f"kv_transfer_params.{ANSWER_LIMIT}"

# For the startup log, next to the ladder.
RESERVES = (
    f"ladder policy {RESERVE}: a request is in the set of its prompt and output limit; without a limit, of its length"
)


class UnsupportedError(InputError, ValueError):
    """Raised for a model or feature that would produce wrong tokens; the message names it and says why."""


@dataclass(frozen=True)
class RopeSettings:
    """Everything the engine's processes need to rotate requests."""

    ladder: FactorLadder
    theta: float  # The model's rotary base.
    angles: str = "exact"  # Or `hf`, for Hugging Face's float32 angles.
    length_aware: bool = True  # Whether `scheduling` plans the steps; otherwise upstream's order and chunks apply.
    step_latency_target: float | None = None  # Target seconds of such a step; None to choose it for the hardware.
    policy: str = BY_LENGTH  # One of `POLICIES`, for requests that choose none.
    parts: tuple[str, ...] = tuple(PARTS)  # Names in `parts.PARTS` of the engine's parts.
    origins: tuple[Origin, ...] = ()  # Of each set; empty if unknown.
    # Whether callers fill in a missing output limit with the rest of the context, as with `AsyncLLM`.
    fills_in_limits: bool = False

    def to_json(self) -> dict[str, Any]:
        others = {key: value for key, value in vars(self).items() if key != "ladder"}
        origins = [each.to_json() for each in self.origins]
        return {"sets": self.ladder.to_json(), **others, "parts": list(self.parts), "origins": origins}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RopeSettings":
        others = {key: value for key, value in values.items() if key not in ("sets", "parts", "origins")}
        origins = tuple(map(Origin.from_json, values.get("origins", ())))
        return cls(FactorLadder.checked(values["sets"]), parts=tuple(values["parts"]), origins=origins, **others)


def settings_of(vllm_config: Any) -> RopeSettings | None:
    """Return the settings that an engine was started with, or None for a stock engine, by its ``VllmConfig``."""
    additional = vllm_config.additional_config
    values = additional.get(KEY) if isinstance(additional, Mapping) else None
    return None if values is None else RopeSettings.from_json(values)
