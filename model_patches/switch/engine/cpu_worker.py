"""``vllm.v1.worker.cpu_worker.CPUWorker``: subclassed to run the model with our runner.

replaces: the worker, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and its process must be patched before that.
what differs: the process is patched first (``worker.py``); ``init_device`` finds our V1 runner under upstream's name.
limits: CPUs. The V2 runner needs a Triton that compiles for CPUs, and picks up our model state (``gpu_model_state.py``).
when it can go: when the runner class is configurable.
"""

from unittest.mock import patch

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from ropeswitch.model_patches.switch.engine.gpu_model_runner import LadderGPUModelRunner
from ropeswitch.model_patches.switch.engine.worker import LadderWorker


class LadderCPUModelRunner(LadderGPUModelRunner, CPUModelRunner):
    """The V1 runner on CPUs; each ``super()`` in the GPU class reaches upstream's CPU runner first."""


class LadderCPUWorker(LadderWorker, CPUWorker):
    """See the module docstring."""

    runner_class: type[LadderCPUModelRunner] = LadderCPUModelRunner

    def init_device(self) -> None:
        with patch.object(cpu_worker, "CPUModelRunner", self.runner_class):
            super().init_device()
