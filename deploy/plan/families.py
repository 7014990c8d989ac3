"""Model families whose parameters the planner can count from a config alone.

Each follows the modelling code of transformers 5.19 and of vLLM 0.32.0 (``vllm.model_executor.models``), which must be able
to split the model over ranks. A test counts the parameters of both.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` differs from LLaMA.

    Attributes:
        qkv_bias: Whether q, k and v have biases; None if the config's ``attention_bias`` decides, which then covers o too.
        mlp_bias: Whether the config's ``mlp_bias`` counts.
        qk_norm: Whether q and k are normalised per head, with ``head_dim`` weights each.
        norm_bias: Whether the norms of hidden states have biases too (LayerNorm).
        experts: The config fields that give the number of experts, in order of preference; empty for a dense model.
        expert_width: The config field with the width of one MLP or expert.
        lm_head_bias: Whether the config's ``lm_head_bias`` counts.
        ends_on_every_stage: Whether vLLM creates the embedding, final norm and head on every pipeline stage, used or not.
        default_window: Sliding window in tokens if the config has no ``sliding_window``.
        window_switch: Whether ``sliding_window`` counts only with ``use_sliding_window``.
        default_theta: Rotary base if the config has no ``rope_theta``.
    """

    qkv_bias: bool | None = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_bias: bool = False
    experts: tuple[str, ...] = ()
    expert_width: str = "intermediate_size"
    lm_head_bias: bool = False
    ends_on_every_stage: bool = False
    default_window: int | None = None
    window_switch: bool = False
    default_theta: float = 10_000.0


FAMILIES = {
    "llama": Family(qkv_bias=None, mlp_bias=True),
    "mistral": Family(default_window=4096),
    "phi3": Family(),
    "qwen2": Family(qkv_bias=True, window_switch=True),
    "qwen3": Family(qkv_bias=None, qk_norm=True, window_switch=True),
    "granite": Family(qkv_bias=None, mlp_bias=True),
    "mixtral": Family(experts=("num_local_experts",), ends_on_every_stage=True, default_theta=1_000_000.0),
    "qwen3_moe": Family(
        qkv_bias=None,
        qk_norm=True,
        experts=("num_experts", "num_local_experts"),
        expert_width="moe_intermediate_size",
        ends_on_every_stage=True,
        window_switch=True,
    ),
    "phimoe": Family(
        qkv_bias=None,
        norm_bias=True,
        experts=("num_local_experts",),
        lm_head_bias=True,
        ends_on_every_stage=True,
        default_theta=1_000_000.0,
    ),
}
