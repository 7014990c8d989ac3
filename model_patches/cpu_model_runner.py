"""``vllm.v1.worker.cpu_model_runner.CPUModelRunner``: subclassed to rotate each request with its own factor set.

replaces: the V1 model runner on CPUs, through the worker (``cpu_worker.py``).
why: the runner alone knows every scheduled token's true position and request.
what differs: before a forward it fills the step's rows (cos and sin of every token, in its request's set) and gives the
    model row numbers for positions; attention, slots and samplers keep true positions. It also makes the intermediate
    tensors of later pipeline stages, which upstream makes in a warm-up that the CPU's eager mode skips.
limits: the V1 runner on CPUs.
when it can go: when vLLM switches LongRoPE factors per request.
"""

from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows, ParityRows
from ropeswitch.model_patches.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.settings import RopeSettings, UnsupportedError, settings_of


class LadderCPUModelRunner(CPUModelRunner):
    """See the module's docstring."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        settings = settings_of(vllm_config)
        assert settings is not None
        self.rope_settings = settings
        self.rope_rows = torch.zeros(self.max_num_tokens, settings.ladder.rotary_dim, dtype=torch.float32)
        self.row_numbers = torch.arange(self.max_num_tokens, dtype=torch.int64)
        self.row_filler = _row_filler(settings, self.max_model_len, self.max_num_tokens)
        # The factor set of every request that the scheduler has placed, by request id.
        self.rope_sets: dict[str, int] = {}

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        self._bind_rows()
        if not get_pp_group().is_first_rank and self.intermediate_tensors is None:  # type: ignore[has-type]
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    def _bind_rows(self) -> None:
        """Give every rotary module this runner's rows.

        Raises:
            UnsupportedError: when the model has no rotary module, or one that the ladder did not replace.
        """
        bound = 0
        for name, module in self.model.named_modules():
            if isinstance(module, RotaryEmbeddingBase | Phi3LongRoPEScaledRotaryEmbedding):
                raise UnsupportedError(f"model: {name} builds its own {type(module).__name__}, which no ladder reaches")
            if isinstance(module, LadderRotaryEmbedding):
                module.rows = self.rope_rows
                bound += 1
        if not bound:
            raise UnsupportedError("model: has no rotary embedding that a factor ladder could rotate")

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for req_id in scheduler_output.finished_req_ids:
            self.rope_sets.pop(req_id, None)
        # After the finished ones: an aborted id may come back in the same step.
        self.rope_sets.update(scheduler_output.rope_sets)
        return super()._update_states(scheduler_output)

    def _model_forward(
        self, input_ids: torch.Tensor | None = None, positions: torch.Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        assert positions is not None
        num_reqs = self.input_batch.num_reqs
        sets = np.array([self.rope_sets[req_id] for req_id in self.input_batch.req_ids], dtype=np.int64)
        token_sets = np.repeat(sets, self.num_scheduled_tokens.np[:num_reqs])
        true_positions = positions[: len(token_sets)].numpy()
        self.row_filler.fill(self.rope_rows.numpy(), true_positions, token_sets)
        return super()._model_forward(input_ids, self.row_numbers[: len(positions)], *args, **kwargs)

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        # Calls the model with whatever is in this buffer: true positions of the last step are not row numbers.
        self.positions.copy_(self.row_numbers)
        return super()._dummy_run(*args, **kwargs)


def _row_filler(settings: RopeSettings, max_model_len: int, max_num_tokens: int) -> ExactRows | ParityRows:
    sets = tuple(Frequencies(s.factors, s.scale, s.start_tokens) for s in settings.ladder.sets)
    rotary_dim = settings.ladder.rotary_dim
    if settings.angles == "hf":
        return ParityRows(settings.theta, rotary_dim, sets)
    return ExactRows(build_tables(settings.theta, rotary_dim, sets, max_model_len), max_num_tokens)
