"""``vllm.v1.worker.gpu.model_states.default.DefaultModelState``: subclassed to rotate each request with its own factor set.

replaces: the V2 runner's model state, through the model's own ``get_model_state_cls``.
why: on the V2 runner the model state chooses the ``positions`` that the model gets, for real steps and for graph capture.
what differs: before each forward it fills the step's rows (cos and sin of every token, in its request's set) and passes the
    model row numbers instead of positions, always from the same buffer; attention, slots and samplers keep true positions.
limits: states that subclass upstream's default state (plain models, M-RoPE, hybrids); others are refused.
when it can go: when vLLM switches LongRoPE factors per request.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu import model_states
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.states import RequestState

from ropeswitch.model_patches.switch.config.settings import UnsupportedError, settings_of
from ropeswitch.model_patches.switch.drafts.draft_sets import DraftSets
from ropeswitch.model_patches.switch.placement import carried_index
from ropeswitch.model_patches.switch.rows.step_rows import StepRows

# Prefixes of request ids in ``vllm.v1.worker.gpu.warmup``.
WARM_UPS = ("_warmup_", "_v2_mixed_warmup_")


class LadderModelState(DefaultModelState):
    """Comes before one of upstream's states in the MRO; see the module docstring."""

    def __init__(self, vllm_config: VllmConfig, model: nn.Module, encoder_cache: Any, device: torch.device) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        settings = settings_of(vllm_config)
        assert settings is not None
        self.step_rows = StepRows(settings, self.max_model_len, self.max_num_tokens, device)
        self.step_rows.bind(model)
        self._numbers = self.step_rows.numbers
        if self.rope_state is not None:
            # One number per axis, with a gap between the axes, as in upstream's buffer.
            self._numbers = torch.zeros_like(self.rope_state.positions)
            self._number_axes()
        # Factor set of the request in each slot, fixed while the request holds it: a preempted request is added again.
        self.slot_sets = np.zeros(self.max_num_reqs, dtype=np.int64)
        # Set by the worker if there is a draft model (worker.py).
        self.draft_sets: DraftSets | None = None

    def restore_rows(self) -> None:
        """Rewrite the contents that weight memory lost while the engine slept; buffers keep their addresses."""
        self.step_rows.restore()
        self._number_axes()

    def _number_axes(self) -> None:
        if self.rope_state is not None:
            self._numbers[:, :-1] = self.step_rows.numbers

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        super().add_request(req_index, new_req_data)
        # Upstream's kernel warm-up uses requests that no scheduler placed and whose output nothing reads.
        self.slot_sets[req_index] = 0 if new_req_data.req_id.startswith(WARM_UPS) else carried_index(new_req_data)

    def prepare_inputs(self, input_batch: InputBatch, req_states: RequestState) -> dict[str, Any]:
        count = input_batch.num_reqs
        sets = self.slot_sets[input_batch.idx_mapping_np[:count]]
        inputs: dict[str, Any] = super().prepare_inputs(input_batch, req_states)
        # With M-RoPE, upstream's state returns its own positions.
        positions = inputs.get("positions", input_batch.positions)[..., : input_batch.num_tokens]
        self.step_rows.fill(positions, sets, input_batch.query_start_loc[: count + 1])
        if self.draft_sets is not None:
            self.draft_sets.put(sets)
        return inputs | {"positions": self._numbers[..., : input_batch.num_tokens_after_padding]}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        inputs: dict[str, Any] = super().prepare_dummy_inputs(num_reqs, num_tokens)
        return inputs | {"positions": self._numbers[..., :num_tokens]}


@cache
def _before(state: type[DefaultModelState]) -> type[DefaultModelState]:
    return type(f"Ladder{state.__name__}", (LadderModelState, state), {})


def give_state(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Have the V2 runner, which asks a model for its state class, keep ours; refuse one whose state no ladder reaches."""
    state = model_states.resolve_model_state_cls(vllm_config, model)
    if not issubclass(state, DefaultModelState):
        raise UnsupportedError(f"model: {type(model).__name__} keeps {state.__name__}, which a ladder does not reach")
    ours = LadderModelState if state is DefaultModelState else _before(state)
    model.get_model_state_cls = lambda: ours
