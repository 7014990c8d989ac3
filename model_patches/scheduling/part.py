"""The part ``scheduling``: plans steps by their predicted time, and reports the progress of prefills to the server."""

from typing import Any

from ropeswitch.model_patches.scheduling.step_times import calibrating_scheduler, run_every_step
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.engine.patching import replace

SCHEDULER = "ropeswitch.model_patches.scheduling.scheduler.make_scheduler"


def attach(engine_args: Any, settings: RopeSettings) -> None:
    """Choose the length-aware scheduler, unless the settings turn it off."""
    if settings.length_aware:
        engine_args.scheduler_cls = SCHEDULER


def prepare(vllm_config: Any) -> None:
    """Have the engine core measure steps for its scheduler at startup, and answer the server's queries."""
    replace("vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size", calibrating_scheduler)


def warm_up(worker: Any) -> None:
    """Compile the kernels of the timed steps before upstream starts watching for compilation."""
    if worker.settings.length_aware:
        run_every_step(worker)
