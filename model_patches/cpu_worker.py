"""``vllm.v1.worker.cpu_worker.CPUWorker``: subclassed to run the model with our runner.

replaces: the worker, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and every worker process must be patched before it builds a model.
what differs: the patches are applied first; ``init_device`` finds our V1 runner under upstream's name; ``patch_report``
    tells the server what was applied.
limits: CPUs. The V2 runner, which needs a Triton that compiles for CPUs, finds our model state (``gpu_model_state.py``).
when it can go: when the runner class is configurable.
"""

from typing import Any
from unittest.mock import patch

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker

from ropeswitch.model_patches import cpu_dcp_attention, slot_mapping_kernel
from ropeswitch.model_patches.cpu_model_runner import LadderCPUModelRunner
from ropeswitch.model_patches.patch_report import report
from ropeswitch.model_patches.registry import apply_all
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
        """What this worker runs with; see :func:`~ropeswitch.model_patches.patch_report.report`."""
        subclassed = {
            "vllm.v1.worker.cpu_model_runner.CPUModelRunner": isinstance(self.model_runner, LadderCPUModelRunner),
            "vllm.v1.worker.cpu_worker.CPUWorker": True,
            cpu_dcp_attention.TARGET: cpu_dcp_attention.registered(self.vllm_config),
            slot_mapping_kernel.TARGET: slot_mapping_kernel.registered(),
        }
        return report(self, subclassed)
