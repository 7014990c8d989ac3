"""``vllm.v1.worker.cpu_worker.CPUWorker``: subclassed to run the model with our runner.

replaces: the worker, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and every worker process must be patched before it builds a model.
what differs: the patches are applied first; ``init_device`` finds our runner under upstream's name; ``patch_report``
    tells the server what was applied.
limits: CPUs with the V1 runner; anything else is refused.
when it can go: when the runner class is configurable.
"""

from typing import Any
from unittest.mock import patch

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker

from ropeswitch.model_patches import cpu_dcp_attention, slot_mapping_kernel
from ropeswitch.model_patches.cpu_model_runner import LadderCPUModelRunner
from ropeswitch.model_patches.registry import applied, apply_all
from ropeswitch.model_patches.settings import SCHEDULER
from ropeswitch.model_patches.support import check_engine


class LadderCPUWorker(CPUWorker):
    """See the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        apply_all()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        check_engine(self.vllm_config)
        if self.parallel_config.decode_context_parallel_size > 1:
            cpu_dcp_attention.register()
            slot_mapping_kernel.register()
        with patch.object(cpu_worker, "CPUModelRunner", LadderCPUModelRunner):
            super().init_device()

    def patch_report(self) -> dict[str, Any]:
        """What this worker runs with, by looking: its rank, the patches' targets and the names of the factor sets."""
        runner, scheduler = self.model_runner, self.vllm_config.scheduler_config.scheduler_cls
        subclassed = {
            _RUNNER: isinstance(runner, LadderCPUModelRunner),
            _WORKER: True,
            _SCHEDULER: scheduler == SCHEDULER,
            cpu_dcp_attention.TARGET: cpu_dcp_attention.registered(self.vllm_config),
            slot_mapping_kernel.TARGET: slot_mapping_kernel.registered(),
        }
        return {
            "rank": self.rank,
            "patches": applied() + [target for target, ours in subclassed.items() if ours],
            "sets": list(runner.rope_settings.ladder.names),
        }


_RUNNER = "vllm.v1.worker.cpu_model_runner.CPUModelRunner"
_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
