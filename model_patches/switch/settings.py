"""What the patched engine is told: the ladder, carried to every process in ``VllmConfig.additional_config``.

``additional_config``, ``scheduler_cls`` and ``worker_cls`` are vLLM's documented seams; each names our code by its import
path, so that engine cores and workers find it by themselves wherever they are started.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import rope_parameters

KEY = "ropeswitch"
ANGLES = ("exact", "hf")
SCHEDULER = "ropeswitch.model_patches.switch.scheduler.make_scheduler"
# The worker for each kind of device that vLLM may run on.
WORKERS = {
    "cpu": "ropeswitch.model_patches.cpu.cpu_worker.LadderCPUWorker",
    "cuda": "ropeswitch.model_patches.switch.gpu_worker.LadderGPUWorker",
}
# The request's field in `vllm_xargs` (SamplingParams.extra_args) that asks for one set by name.
FORCED_SET = "rope_factor_set"


class UnsupportedError(ValueError):
    """A model or feature that would give a wrong token; the message names it and says why."""


@dataclass(frozen=True)
class RopeSettings:
    """Everything the engine's processes need to rotate requests.

    Attributes:
        ladder: The factor sets.
        theta: The model's rotary base.
        angles: ``exact``, or ``hf`` for Hugging Face's float32 angles.
        length_aware: Whether steps are planned by ``length_aware.py`` rather than by upstream's order and chunks.
        step_latency_target: Seconds that such a step should take, or None for what suits the hardware.
    """

    ladder: FactorLadder
    theta: float
    angles: str = "exact"
    length_aware: bool = True
    step_latency_target: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "sets": self.ladder.to_json(),
            "theta": self.theta,
            "angles": self.angles,
            "length_aware": self.length_aware,
            "step_latency_target": self.step_latency_target,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RopeSettings":
        others = {key: value for key, value in values.items() if key != "sets"}
        return cls(FactorLadder.checked(values["sets"]), **others)


def settings_of(vllm_config: Any) -> RopeSettings | None:
    """The settings an engine was started with, or None for a stock engine.

    Args:
        vllm_config: ``vllm.config.VllmConfig``.
    """
    additional = vllm_config.additional_config
    values = additional.get(KEY) if isinstance(additional, Mapping) else None
    return None if values is None else RopeSettings.from_json(values)


def configure(engine_args: Any, settings: RopeSettings, hf_config: Mapping[str, Any], *, device_name: str) -> None:
    """Put a ladder on an engine that is about to be built.

    The Hugging Face config is told that the model has plain RoPE up to the ladder's end, so that no part of vLLM sizes,
    scales or limits anything by the LongRoPE fields; the rotary module, which takes its angles from the ladder alone, is
    then put in (see ``rope_dict.py``).

    Args:
        engine_args: ``vllm.EngineArgs``, or the namespace that ``vllm serve``'s parser makes.
        settings: The ladder to serve with.
        hf_config: The model's text config as a dict, with the user's own overrides applied.
        device_name: ``vllm.platforms.current_platform.device_name``, one of :data:`WORKERS`.

    Raises:
        FactorError: when ``max_model_len`` exceeds the ladder's end.
        UnsupportedError: when the user chose a scheduler or worker class of their own.
    """
    for field in ("scheduler_cls", "worker_cls"):
        if getattr(engine_args, field) not in (None, "auto", SCHEDULER, WORKERS[device_name]):
            raise UnsupportedError(
                f"{field}: {getattr(engine_args, field)!r} cannot be combined with a factor ladder, which brings its own"
            )
    rope = rope_parameters(hf_config)
    plain = {"rope_type": "default", "rope_theta": settings.theta}
    if rope.get("partial_rotary_factor") is not None:
        plain["partial_rotary_factor"] = rope["partial_rotary_factor"]
    overrides = dict(engine_args.hf_overrides or {})
    overrides |= {"rope_parameters": plain, "max_position_embeddings": settings.ladder.max_length}
    engine_args.hf_overrides = overrides
    engine_args.max_model_len = checked_max_model_len(engine_args.max_model_len, settings.ladder)
    engine_args.scheduler_cls = SCHEDULER
    engine_args.worker_cls = WORKERS[device_name]
    engine_args.additional_config = dict(engine_args.additional_config or {}) | {KEY: settings.to_json()}


def checked_max_model_len(requested: int | None, ladder: FactorLadder) -> int:
    """The model length to serve: the ladder's end unless the user asked for less; -1 (auto) stays.

    Raises:
        FactorError: when the request exceeds the ladder's end.
    """
    if requested is None:
        return ladder.max_length
    if requested != -1 and requested > ladder.max_length:
        raise FactorError(
            f"max_model_len: {requested} exceeds {ladder.max_length}, where the last factor set, "
            f"{ladder.sets[-1].name!r}, ends"
        )
    return requested
