"""``vllm.v1.worker.cpu_worker.CPUWorker``: subclassed to run the model with our runner.

replaces: the worker, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and every worker process must be patched before it builds a model.
what differs: the patches are applied first; ``init_device`` finds our V1 runner under upstream's name; ``patch_report``
    tells the server what was applied; shared memory for collectives loses its name, so that no way to end leaves it behind.
limits: CPUs. The V2 runner, which needs a Triton that compiles for CPUs, finds our model state (``gpu_model_state.py``).
when it can go: when the runner class is configurable.
"""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker

from ropeswitch.model_patches.cpu import cpu_dcp_attention, slot_mapping_kernel
from ropeswitch.model_patches.cpu.cpu_model_runner import LadderCPUModelRunner
from ropeswitch.model_patches.guard.patch_report import report, step_rows
from ropeswitch.model_patches.guard.registry import apply_all
from ropeswitch.model_patches.scheduling.step_times import time_step
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.model_patches.switch.support import check_engine


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
        forget_shared_names()

    def time_step(self, tokens: int) -> float:
        """Seconds of a warm-up step; see :func:`~ropeswitch.model_patches.scheduling.step_times.time_step`."""
        return time_step(self, tokens)

    def replace_sets(self, settings: dict[str, Any]) -> None:
        """Rotate with other factors from now on; see :meth:`~ropeswitch.model_patches.switch.step_rows.StepRows.replace`."""
        step_rows(self.model_runner).replace(RopeSettings.from_json(settings))

    def patch_report(self) -> dict[str, Any]:
        """What this worker runs with; see :func:`~ropeswitch.model_patches.guard.patch_report.report`."""
        subclassed = {
            "vllm.v1.worker.cpu_model_runner.CPUModelRunner": isinstance(self.model_runner, LadderCPUModelRunner),
            "vllm.v1.worker.cpu_worker.CPUWorker": True,
            cpu_dcp_attention.TARGET: cpu_dcp_attention.registered(self.vllm_config),
            slot_mapping_kernel.TARGET: slot_mapping_kernel.registered(),
        }
        return report(self, subclassed)


def forget_shared_names() -> None:
    """Take the names off the shared memory through which this worker talks to the other ranks of its groups.

    Upstream frees it by name when a worker ends by itself, which a server's workers rarely do. All ranks of a group have
    mapped it when any has its communicator, so without a name it is freed with the last of them, however they end.
    """
    for line in Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else ():
        # Address, rights, offset, device, inode and, for what has one, a path.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/dev/shm/") and "-cpushm_" in fields[5]:
            Path(fields[5]).unlink(missing_ok=True)
