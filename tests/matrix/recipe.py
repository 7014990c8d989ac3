"""What is not automatic about an architecture's tiny checkpoint, and fields and flags that several of them share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What latent attention needs in float32: a processor with AMX would get a kernel for bfloat16 only.
# That kernel takes whole prompts only.
LATENT = {"attention_backend": "CPU_MLA", "block_size": 16, "max_num_batched_tokens": 512}
# vLLM keeps no states of these recurrent layers for its prefix cache on CPUs.
UNCACHED = {"enable_prefix_caching": False}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
LATENT_FIELDS = {
    "q_lora_rank": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "num_key_value_heads": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What is not automatic about one architecture.

    Attributes:
        family: The class of transformers; None where it is named as the architecture.
        config: Fields of its config, which replace the automatic ones; a mapping goes into a nested config.
        engine: Engine arguments, for stock vLLM and with a ladder.
        trained: YaRN's parameters in the config, where the model was trained with it; ``rope_type`` linear where positions
            are interpolated instead.
        ladder: As of ``--ladder``.
        fields: Of the config, where transformers has no class for the architecture and its weights are made in vLLM.
        tokens: Names that vLLM's code looks up in the tokenizer, which is left out where this is None; a mapping has them by
            the tokenizer's attributes.
        replaced: The modules of :mod:`tests.matrix`, with commas, that compute in torch what vLLM has no CPU kernel for in
            float32.
        missing: Why no checkpoint can be made.
        processor: What ``preprocessor_config.json`` holds, where vLLM reads it even for text alone.
        forced: The rotary base of the layers that a ladder scales, where stock vLLM has no YaRN for them: the reference is
            then a stock engine with each set's frequencies in these layers' tables.
    """

    family: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Any] = field(default_factory=dict)
    ladder: str = "auto"
    fields: Mapping[str, Any] | None = None
    tokens: tuple[str, ...] | Mapping[str, str] | None = None
    replaced: str = ""
    missing: str = ""
    processor: Mapping[str, Any] | None = None
    forced: float | None = None


def mrope(*sections: int, theta: float = 1000000.0, **more: Any) -> dict[str, Any]:
    """Rotary parameters of M-RoPE, as published configs have them."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "mrope_section": list(sections)} | more}


QWEN3_5 = mrope(2, 1, 1, theta=10000000.0, mrope_interleaved=True, partial_rotary_factor=0.25)
