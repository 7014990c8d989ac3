"""``vllm.v1.worker.cpu_model_runner.CPUModelRunner``: subclassed for pipeline stages and seeded sampling.

replaces: the V1 model runner on CPUs, through the worker (``cpu_worker.py``).
why: upstream's fails with later pipeline stages in eager mode, and with a seeded request whose prompt is chunked.
what differs: it creates the intermediate tensors of later pipeline stages, which upstream creates in a warm-up that eager
    mode on CPUs skips. After a prompt chunk whose sampled token is discarded, it restores the request's random generator;
    upstream rewinds an offset instead, which CPU generators do not have.
limits: the V1 runner on CPUs.
when it can go: when upstream's CPU runner does both.
"""

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group

from ropeswitch.model_patches.switch.engine.cpu_worker import LadderCPUModelRunner


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
