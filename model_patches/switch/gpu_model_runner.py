"""``vllm.v1.worker.gpu_model_runner.GPUModelRunner``: subclassed to rotate each request with its own factor set.

replaces: the V1 model runner, through the workers (``gpu_worker.py``, and ``cpu_worker.py``, whose runner descends from it).
why: the runner alone knows every scheduled token's true position and request.
what differs: before a forward it fills the step's rows (cos and sin of every token, in its request's set) and gives the
    model row numbers for positions. A captured CUDA graph reads positions where they lay when it was captured, so the
    row numbers are written there for the time of the forward; attention, slots and samplers keep true positions.
limits: the V1 runner; the V2 runner is reached through its model state (``gpu_model_state.py``).
when it can go: when vLLM switches LongRoPE factors per request.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ropeswitch.model_patches.switch.draft_sets import DraftSets, upstream_tables
from ropeswitch.model_patches.switch.initialize_model import require_checked
from ropeswitch.model_patches.switch.settings import settings_of
from ropeswitch.model_patches.switch.step_rows import StepRows


class LadderGPUModelRunner(GPUModelRunner):
    """See the module's docstring."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        settings = settings_of(vllm_config)
        assert settings is not None
        parallel = vllm_config.parallel_config
        # A dummy run for context parallelism reads rows that lie this far behind a step's (`cp_utils.py`).
        behind = parallel.decode_context_parallel_size * parallel.cp_kv_cache_interleave_size
        self.step_rows = StepRows(settings, self.max_model_len, self.max_num_tokens + behind, device)
        # The factor set of every request that the scheduler has placed, by request id.
        self.rope_sets: dict[str, int] = {}
        self.draft_sets = DraftSets(self.max_num_reqs, device)

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        model = self.get_model()
        require_checked(model, self.load_config.load_format)
        self.step_rows.bind(model)
        # No proposer but those with layers of their own has a module for a model.
        if isinstance(draft := self.get_draft_model(), nn.Module):
            self.draft_sets.bind(draft)
            if hasattr(self.drafter, "build_per_group_and_layer_attn_metadata"):
                self.draft_sets.follow(self.drafter)
            if self.vllm_config.speculative_config.max_model_len is None:
                # Upstream's is where the draft's own config ends, for which other angles were meant.
                tables = upstream_tables(draft).values()
                self.effective_drafter_max_model_len = min([self.max_model_len, *tables])

    def restore_rows(self) -> None:
        """Write what the memory of weights lost while the engine slept; buffers keep their addresses."""
        self.step_rows.restore()

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for req_id in scheduler_output.finished_req_ids:
            self.rope_sets.pop(req_id, None)
        # After the finished ones: an aborted id may come back in the same step.
        self.rope_sets.update(scheduler_output.rope_sets)
        return super()._update_states(scheduler_output)

    def _model_forward(
        self, input_ids: torch.Tensor | None = None, positions: torch.Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        assert positions is not None and positions.data_ptr() == self._model_positions.data_ptr()
        count = self.input_batch.num_reqs
        sets = np.array([self.rope_sets[req_id] for req_id in self.input_batch.req_ids], dtype=np.int64)
        tokens = int(self.query_start_loc.np[count])
        self.step_rows.fill(positions[..., :tokens], sets, self.query_start_loc.gpu[: count + 1])
        self.draft_sets.put(sets)
        true_positions = positions.clone()
        positions.copy_(self.step_rows.numbers[: positions.shape[-1]].expand_as(positions))
        output = super()._model_forward(input_ids, positions, *args, **kwargs)
        positions.copy_(true_positions)
        return output

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        # Calls the model with whatever is in this buffer: true positions of the last step are not row numbers.
        self._number_rows()
        return super()._dummy_run(*args, **kwargs)

    def _number_rows(self) -> torch.Tensor:
        """Write row numbers where the model's positions lie, and return them."""
        positions = self._model_positions
        # M-RoPE's buffer has a column more than a step has tokens, which no model sees.
        count = min(positions.shape[-1], len(self.step_rows.numbers))
        positions[..., :count] = self.step_rows.numbers[:count]
        return positions[..., :count]

    @property
    def _model_positions(self) -> torch.Tensor:
        """The buffer of which the model gets the first columns: ``[tokens]``, or for M-RoPE ``[axes, tokens]``."""
        return self.mrope_positions.gpu if self.uses_mrope else self.positions
