"""``vllm.v1.worker.cpu_model_runner.CPUModelRunner``: subclassed to rotate each request with its own factor set.

replaces: the V1 model runner on CPUs, through the worker (``cpu_worker.py``).
why: as ``gpu_model_runner.py`` says.
what differs: as there. It also makes the intermediate tensors of later pipeline stages, which upstream makes in a warm-up
    that the CPU's eager mode skips.
limits: the V1 runner on CPUs.
when it can go: when vLLM switches LongRoPE factors per request.
"""

from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from ropeswitch.model_patches.gpu_model_runner import LadderGPUModelRunner


class LadderCPUModelRunner(LadderGPUModelRunner, CPUModelRunner):
    """See the module's docstring; each ``super()`` of the GPU's class reaches upstream's CPU runner first."""

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        if not get_pp_group().is_first_rank and self.intermediate_tensors is None:  # type: ignore[has-type]
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
