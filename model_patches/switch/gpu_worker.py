"""``vllm.v1.worker.gpu_worker.Worker``: subclassed to run the model with our runner.

replaces: the worker on GPUs, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and every worker process must be patched before it builds a model.
what differs: the patches are applied first; the V1 runner is ours; ``patch_report`` tells the server what was applied. The
    V2 runner stays upstream's and finds our model state (``gpu_model_state.py``).
limits: NVIDIA GPUs.
when it can go: when the runner class is configurable.
"""

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from ropeswitch.model_patches.guard.patch_report import report, step_rows
from ropeswitch.model_patches.guard.registry import apply_all
from ropeswitch.model_patches.scheduling.step_times import time_step
from ropeswitch.model_patches.switch.gpu_model_runner import LadderGPUModelRunner
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.model_patches.switch.support import check_engine


class LadderGPUWorker(Worker):
    """See the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        apply_all()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        check_engine(self.vllm_config)
        super().init_device()

    def _make_model_runner(self) -> Any:
        if self.use_v2_model_runner:
            return super()._make_model_runner()
        return LadderGPUModelRunner(self.vllm_config, self.device)

    def time_step(self, tokens: int) -> float:
        """Seconds of a warm-up step; see :func:`~ropeswitch.model_patches.scheduling.step_times.time_step`."""
        return time_step(self, tokens)

    def replace_sets(self, settings: dict[str, Any]) -> None:
        """Rotate with other factors from now on; see :meth:`~ropeswitch.model_patches.switch.step_rows.StepRows.replace`."""
        step_rows(self.model_runner).replace(RopeSettings.from_json(settings))

    def patch_report(self) -> dict[str, Any]:
        """What this worker runs with; see :func:`~ropeswitch.model_patches.guard.patch_report.report`."""
        return report(self, {"vllm.v1.worker.gpu_worker.Worker": True})
