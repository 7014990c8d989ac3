"""``vllm.v1.worker.cpu_model_runner.CPUModelRunner`` and ``vllm.v1.worker.cpu_worker.CPUWorker``: subclassed with fixes.

replaces: the switch's own worker on CPUs (``switch/engine/cpu_worker.py``), through ``parallel_config.worker_cls``, and with
    it the V1 model runner.
why: upstream's runner fails with later pipeline stages in eager mode, and with a seeded request whose prompt is chunked;
    its worker leaves shared memory behind when it is killed.
what differs: the runner creates the intermediate tensors of later pipeline stages, which upstream creates in a warm-up that
    eager mode on CPUs skips. After a prompt chunk whose sampled token is discarded, it restores the request's random
    generator; upstream rewinds an offset instead, which CPU generators do not have. The worker unlinks shared memory for
    collectives once it is mapped.
limits: CPUs; the V1 runner.
when it can go: when upstream's CPU runner and worker do the same.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group

from ropeswitch.model_patches.cpu import cpu_dcp_attention
from ropeswitch.model_patches.switch.engine.cpu_worker import LadderCPUModelRunner, LadderCPUWorker


class CPUPartModelRunner(LadderCPUModelRunner):
    """See the module docstring."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        # States of the generators whose draw in this step will be undone, by batch index.
        self._undone: dict[int, torch.Tensor] = {}

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        if not get_pp_group().is_first_rank and self.intermediate_tensors is None:  # type: ignore[has-type]
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        unfinished = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        self._undone = {place: generators[place].get_state() for place in unfinished if place in generators}
        return super()._sample(*args, **kwargs)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        # Hide these from upstream, which would read their offset.
        drew = {place: generators.pop(place) for place in self._undone}
        for place, generator in drew.items():
            generator.set_state(self._undone[place])
        kept = super()._bookkeeping_sync(*args, **kwargs)
        generators.update(drew)
        return kept


class CPUPartWorker(LadderCPUWorker):
    """See the module docstring."""

    runner_class = CPUPartModelRunner

    def init_device(self) -> None:
        if self.parallel_config.decode_context_parallel_size > 1:
            cpu_dcp_attention.register()
        super().init_device()
        forget_shared_names()


def forget_shared_names() -> None:
    """Unlink the shared memory that connects this worker to the other ranks of its groups, which have all mapped it by now.

    Upstream frees it by name when a worker exits by itself, which a server's workers rarely do.
    """
    for line in Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else ():
        # Address, permissions, offset, device, inode and, for a mapped file, its path.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/dev/shm/") and "-cpushm_" in fields[5]:
            Path(fields[5]).unlink(missing_ok=True)
