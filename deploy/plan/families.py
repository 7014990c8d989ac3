"""Model families whose parameters the planner can count from a config alone.

Each follows the modelling code of transformers 5.19 and of vLLM 0.32.0 (``vllm.model_executor.models``), which must be able
to split the model over ranks. A test counts the parameters of both.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` differs from LLaMA. Names of biases are fields of the config."""

    qkv_bias: bool | None = False  # None if attention_bias decides, which then covers o too
    mlp_bias: bool = False
    qk_norm: bool = False  # q and k are normalised per head, with head_dim weights each
    norm_bias: bool = False  # the norms of hidden states are LayerNorms
    experts: tuple[str, ...] = ()  # fields with the number of experts, in order of preference; empty for a dense model
    expert_width: str = "intermediate_size"  # field with the width of one MLP or expert
    lm_head_bias: bool = False
    ends_on_every_stage: bool = False  # vLLM creates embedding, final norm and head on every pipeline stage
    default_window: int | None = None  # sliding window in tokens if the config has none
    window_switch: bool = False  # sliding_window counts only with use_sliding_window
    default_theta: float = 10_000.0  # rotary base if the config has none


_EXPERTS = Family(experts=("num_local_experts",), ends_on_every_stage=True, default_theta=1_000_000.0)
_NUMBERS = ("num_experts", "num_local_experts")
_QWEN3 = Family(qkv_bias=None, qk_norm=True, window_switch=True)
FAMILIES = {
    "llama": Family(qkv_bias=None, mlp_bias=True),
    "mistral": Family(default_window=4096),
    "phi3": Family(),
    "qwen2": Family(qkv_bias=True, window_switch=True),
    "qwen3": _QWEN3,
    "granite": Family(qkv_bias=None, mlp_bias=True),
    "mixtral": _EXPERTS,
    "qwen3_moe": replace(_QWEN3, experts=_NUMBERS, expert_width="moe_intermediate_size", ends_on_every_stage=True),
    "phimoe": replace(_EXPERTS, qkv_bias=None, norm_bias=True, lm_head_bias=True),
}
