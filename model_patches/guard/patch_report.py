"""What a worker reports of itself, by looking at what it runs."""

from typing import Any

from ropeswitch.model_patches.guard.records import SCHEDULER
from ropeswitch.model_patches.guard.registry import OURS, applied


def report(worker: Any) -> dict[str, Any]:
    """A worker's rank, the targets of the patches that it runs with, and the names of its factor sets.

    Args:
        worker: An upstream worker of ours whose model is loaded.
    """
    config, runner = worker.vllm_config, worker.model_runner
    in_use = (worker, runner, getattr(runner, "model_state", None))
    ours = [type(each) for each in in_use if type(each).__module__.startswith(OURS)]
    patches = [f"{base.__module__}.{base.__qualname__}" for each in ours for base in each.__mro__]
    if str(config.scheduler_config.scheduler_cls).startswith(OURS):
        patches.append(SCHEDULER)
    if config.device_config.device_type == "cpu" and "cpu" in worker.settings.parts:
        # Imported here: upstream's CPU modules change torch for CPUs.
        from ropeswitch.model_patches.cpu import cpu_dcp_attention, slot_mapping_kernel

        patches += [cpu_dcp_attention.TARGET] * cpu_dcp_attention.registered(config)
        patches += [slot_mapping_kernel.TARGET] * slot_mapping_kernel.registered()
    return {"rank": worker.rank, "patches": applied() + patches, "sets": list(worker.step_rows.sets)}
