"""``vllm.v1.worker.gpu_worker.Worker``: subclassed to run the model with our runner.

replaces: the worker on GPUs, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and its process must be patched before that.
what differs: the process is patched first (``worker.py``); the V1 runner is ours. The V2 runner stays upstream's and finds
    our model state (``gpu_model_state.py``). The parts warm up before upstream, which ends its warm-up by starting to watch
    for compilation (``--jit-monitor-mode``); with ``--enforce-eager`` there is no JIT warm-up and no watch.
limits: NVIDIA GPUs.
when it can go: when the runner class is configurable.
"""

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.engine.gpu_model_runner import LadderGPUModelRunner
from ropeswitch.model_patches.switch.engine.worker import LadderWorker


class LadderGPUWorker(LadderWorker, Worker):
    """See the module docstring."""

    def _make_model_runner(self) -> Any:
        if self.use_v2_model_runner:
            return super()._make_model_runner()
        return LadderGPUModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> Any:
        if self.vllm_config.kernel_config.enable_jit_warmup:
            parts.call("warm_up", self.settings.parts, self)
        return super().compile_or_warm_up_model()
