"""``vllm.v1.worker.cpu_worker.CPUWorker``: adds CPU fixes to the switch's worker.

replaces: the switch's own worker on CPUs (``switch/engine/cpu_worker.py``), through ``parallel_config.worker_cls``.
why: upstream leaves shared memory behind when a worker is killed, and its runner lacks the fixes in ``cpu_model_runner.py``.
what differs: the model runner; shared memory for collectives is unlinked once mapped, so a killed worker leaves none behind.
limits: CPUs.
when it can go: when upstream unlinks that memory once every rank has mapped it.
"""

import sys
from pathlib import Path

from ropeswitch.model_patches.cpu import cpu_dcp_attention, slot_mapping_kernel
from ropeswitch.model_patches.cpu.cpu_model_runner import CPUPartModelRunner
from ropeswitch.model_patches.switch.engine.cpu_worker import LadderCPUWorker


class CPUPartWorker(LadderCPUWorker):
    """See the module docstring."""

    runner_class = CPUPartModelRunner

    def init_device(self) -> None:
        if self.parallel_config.decode_context_parallel_size > 1:
            cpu_dcp_attention.register()
            slot_mapping_kernel.register()
        super().init_device()
        forget_shared_names()


def forget_shared_names() -> None:
    """Unlink the shared memory that connects this worker to the other ranks of its groups.

    Upstream frees it by name when a worker exits by itself, which a server's workers rarely do. All ranks of a group have
    mapped it by the time any has its communicator, so once unlinked it is freed when the last of them ends, however it ends.
    """
    for line in Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else ():
        # Address, permissions, offset, device, inode and, for a mapped file, its path.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/dev/shm/") and "-cpushm_" in fields[5]:
            Path(fields[5]).unlink(missing_ok=True)
