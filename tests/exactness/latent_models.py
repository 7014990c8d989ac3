"""Tiny checkpoints with multi-head latent attention, in the sizes that vLLM's CPU kernel is compiled for."""

from pathlib import Path
from typing import Any

import transformers
from vllm import LLM

from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.parts import PARTS
from tests.exactness import checkpoints
from tests.exactness.auto_cases import AUTO, PLAIN, WINDOW
from tests.exactness.batches import Start
from tests.exactness.checkpoints import SHAPE

# The part that rotates; the kernel takes a latent of 512 and 64 rotated values, in blocks of 16 tokens.
ROTATED = 64
PAIRS = ROTATED // 2
# Bytes of the caches per token, float32, two layers: of a latent, of keys and values of four heads of 96, of a Phi-3.
LATENT_PER_TOKEN = 2 * (512 + ROTATED) * 4
EXPANDED_PER_TOKEN = 2 * 2 * 4 * (32 + ROTATED) * 4
PHI3_PER_TOKEN = 2 * 2 * 2 * 32 * 4
HEADS: dict[str, Any] = {
    "kv_lora_rank": 512, "qk_rope_head_dim": ROTATED, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_key_value_heads": 4,
}  # fmt: skip
# What an engine in float32 needs: a processor with AMX would get a kernel for bfloat16 only.
REFERENCE_KERNEL: dict[str, Any] = {"attention_backend": "CPU_MLA", "block_size": 16}
# By the name of transformers' classes.
MODELS: dict[str, dict[str, Any]] = {
    "DeepseekV2": {"q_lora_rank": None, "first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {"q_lora_rank": 48, "first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    # vLLM takes nothing but a mixture of experts for it.
    "Glm4MoeLite": {
        "q_lora_rank": 48, "first_k_dense_replace": 1, "mlp_layer_types": ["dense", "sparse"], "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    },
    # Without the experts that pass their input on, of which transformers saves weights that vLLM does not take.
    "LongcatFlash": {
        "q_lora_rank": 48, "num_layers": 1, "ffn_hidden_size": 160, "expert_ffn_hidden_size": 32, "moe_topk": 2,
        "n_routed_experts": 4, "zero_expert_num": 0, "zero_expert_type": "identity", "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    # The norm of a dense layer's output is in vLLM's model only.
    "AXK1": {
        "q_lora_rank": 48, "first_k_dense_replace": 0, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "moe_intermediate_size": 64,
    },
    "MiniCPM3": {"q_lora_rank": 48, "kv_lora_rank": 64, "qk_rope_head_dim": 32},
}  # fmt: skip


def checkpoint(folder: Path, family: str, rope: dict[str, Any] | None = None, *, seed: int = 6, **changes: Any) -> Path:
    """A checkpoint of ``family`` with these rotary parameters, by default plain ones; ``changes`` go into the config."""
    values = SHAPE | HEADS | {"max_position_embeddings": WINDOW} | MODELS[family] | changes
    if family == "LongcatFlash":
        for field in ("num_hidden_layers", "intermediate_size"):
            del values[field]
    config = getattr(transformers, f"{family}Config")(rope_parameters=dict(rope or PLAIN), **values)
    return checkpoints.save(getattr(transformers, f"{family}ForCausalLM"), config, folder, seed)


# DeepSeek's YaRN as its models were trained with it: here from 32 tokens to the window, with a softmax scale of its own.
TRAINED: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
# The sets of such a model served to 480 tokens: the longest that fits the small cache of the test of preemption.
LONGEST = 480
TRAINED_SETS = {end: TRAINED | {"factor": end / 32} for end in (WINDOW, 128, 256, LONGEST)}


def trained(folder: Path) -> Path:
    """A DeepSeek V3 that was trained with YaRN."""
    return checkpoint(folder, "DeepseekV3", TRAINED, seed=9)


def starting_trained(start: Start, per_token: int, **arguments: Any) -> Start:
    """Starts engines of :func:`trained` with the automatic ladder, whose cache has ``per_token`` bytes per token.

    The tests of other files count those of a Phi-3.
    """

    def start_engine(folder: Path, **changes: Any) -> LLM:
        if "kv_cache_memory_bytes" in changes:
            changes["kv_cache_memory_bytes"] = changes["kv_cache_memory_bytes"] // PHI3_PER_TOKEN * per_token
        # All parts, as `ropeswitch serve` has them: tests compare the patches that workers report.
        llm = start(folder, AUTO | {"parts": list(PARTS)}, **({"max_model_len": LONGEST} | arguments | changes))
        settings = settings_of(llm.llm_engine.vllm_config)
        assert settings is not None and settings.ladder.names == ("original", "128", "256", "480")
        assert all(each.softmax_scale is not None for each in settings.ladder.sets)
        return llm

    return start_engine
