"""What a worker tells the server about itself, by looking at what it runs."""

from typing import Any

from ropeswitch.model_patches.guard.registry import applied
from ropeswitch.model_patches.switch.gpu_model_runner import LadderGPUModelRunner
from ropeswitch.model_patches.switch.gpu_model_state import LadderModelState
from ropeswitch.model_patches.switch.settings import SCHEDULER
from ropeswitch.model_patches.switch.step_rows import StepRows

_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
_V1_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
_STATE = "vllm.v1.worker.gpu.model_states.default.DefaultModelState"


def report(worker: Any, subclassed: dict[str, bool]) -> dict[str, Any]:
    """A worker's rank, the targets of the patches that it runs with, and the names of its factor sets.

    Args:
        worker: An upstream worker whose model is loaded.
        subclassed: Targets that depend on the kind of worker, and whether ours stand in for them.
    """
    runner = worker.model_runner
    state = getattr(runner, "model_state", None)
    subclassed = subclassed | {
        _SCHEDULER: worker.vllm_config.scheduler_config.scheduler_cls == SCHEDULER,
        _V1_RUNNER: isinstance(runner, LadderGPUModelRunner),
        _STATE: isinstance(state, LadderModelState),
    }
    return {
        "rank": worker.rank,
        "patches": applied() + [target for target, ours in subclassed.items() if ours],
        "sets": list(step_rows(runner).sets),
    }


def step_rows(runner: Any) -> StepRows:
    """The rows that a model runner of either kind fills."""
    state = getattr(runner, "model_state", None)
    return state.step_rows if isinstance(state, LadderModelState) else runner.step_rows
