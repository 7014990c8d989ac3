"""``vllm.v1.worker.gpu_model_runner.GPUModelRunner``: subclassed to rotate each request with its own factor set.

replaces: the V1 model runner, through the workers (``gpu_worker.py``, and ``cpu_worker.py``, whose runner subclasses it).
why: only the runner knows every scheduled token's true position and request.
what differs: before each forward it fills the step's rows (cos and sin of every token, in its request's set) and passes the
    model row numbers instead of positions. A captured CUDA graph reads positions from the buffer that it was captured with,
    so row numbers are written there for the duration of the forward; attention, slots and samplers keep true positions.
limits: the V1 runner; the V2 runner is patched through its model state (``gpu_model_state.py``).
when it can go: when vLLM switches LongRoPE factors per request.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.drafts.draft_sets import DraftSets, upstream_tables
from ropeswitch.model_patches.switch.rows.step_rows import StepRows


class LadderGPUModelRunner(GPUModelRunner):
    """See the module docstring."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        settings = settings_of(vllm_config)
        assert settings is not None
        parallel = vllm_config.parallel_config
        # Dummy runs under context parallelism read this many rows past a step's (`cp_utils.py`).
        behind = parallel.decode_context_parallel_size * parallel.cp_kv_cache_interleave_size
        self.step_rows = StepRows(settings, self.max_model_len, self.max_num_tokens + behind, device)
        # Index of the factor set of every request that the scheduler has placed, by request id.
        self.rope_sets: dict[str, int] = {}
        self.draft_sets = DraftSets(self.max_num_reqs, device)

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        model = self.get_model()
        self.step_rows.bind(model)
        # Only proposers with their own layers have an `nn.Module` as their model.
        if isinstance(draft := self.get_draft_model(), nn.Module):
            self.draft_sets.bind(draft)
            if hasattr(self.drafter, "build_per_group_and_layer_attn_metadata"):
                self.draft_sets.follow(self.drafter)
            if self.vllm_config.speculative_config.max_model_len is None:
                # Upstream's limit is the maximum length in the draft's own config, which assumes other angles.
                tables = upstream_tables(draft).values()
                self.effective_drafter_max_model_len = min([self.max_model_len, *tables])

    def restore_rows(self) -> None:
        """Rewrite the contents that weight memory lost while the engine slept; buffers keep their addresses."""
        self.step_rows.restore()

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for req_id in scheduler_output.finished_req_ids:
            self.rope_sets.pop(req_id, None)
        # Finished requests come first: an aborted id may be reused in the same step.
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
        if self.draft_sets.bound:
            self.draft_sets.put(sets)
        true_positions = positions.clone()
        positions.copy_(self.step_rows.numbers[: positions.shape[-1]].expand_as(positions))
        output = super()._model_forward(input_ids, positions, *args, **kwargs)
        positions.copy_(true_positions)
        return output

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        # Runs the model on this buffer's contents; the last step's true positions are not row numbers.
        self._number_rows()
        return super()._dummy_run(*args, **kwargs)

    def _number_rows(self) -> torch.Tensor:
        """Write row numbers into the model's positions buffer and return them."""
        positions = self._model_positions
        # M-RoPE's buffer has one more column than a step has tokens; no model sees it.
        count = min(positions.shape[-1], len(self.step_rows.numbers))
        positions[..., :count] = self.step_rows.numbers[:count]
        return positions[..., :count]

    @property
    def _model_positions(self) -> torch.Tensor:
        """The positions buffer whose first columns the model gets: ``[tokens]``, or for M-RoPE ``[axes, tokens]``."""
        return self.mrope_positions.gpu if self.uses_mrope else self.positions
