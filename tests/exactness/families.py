"""Tiny checkpoints of models whose rotation differs from Llama's, and the static scaling of each set of their ladder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from tests.exactness import gptj
from tests.exactness.auto_cases import LONGEST, PLAIN, WINDOW, yarn_sets
from tests.exactness.checkpoints import SHAPE, VOCAB, save
from tests.exactness.static_reference import StaticReference

HEAD = 32
TEXT: dict[str, Any] = SHAPE | {"max_position_embeddings": WINDOW, "head_dim": HEAD}
LOCAL_AND_FULL = ["sliding_attention", "full_attention"]
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 5000.0}
# Smaller than the window, so that a local layer that rotated by the ladder would show.
SLIDING = {"layer_types": LOCAL_AND_FULL, "sliding_window": 48}
GPT_OSS = PLAIN | {
    "rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": WINDOW,
}  # fmt: skip
MINISTRAL = GPT_OSS | {"truncate": True, "llama_4_scaling_beta": 0.3}
TWICE = TEXT | {"max_position_embeddings": 2 * WINDOW}
LONG = TEXT | {"max_position_embeddings": LONGEST}
SCOUT = PLAIN | {
    "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
    "original_max_position_embeddings": WINDOW,
}  # fmt: skip
# Attention scaled by positions, which vLLM turns off up to 32,768 tokens by default. The routed experts'
# weights are 0: vLLM's CPU kernel applies router weights to the experts' output, Llama 4 to their input.
LLAMA4 = TEXT | {
    "intermediate_size_mlp": 160, "num_local_experts": 2, "num_experts_per_tok": 1, "no_rope_layers": [1, 0],
    "attention_chunk_size": 4096, "floor_scale": 16, "attn_scale": 0.4, "use_qk_norm": False, "initializer_range": 0.0,
    "engine": {"override_generation_config": {"attn_temperature_tuning": True}},
}  # fmt: skip
GPTJ = {
    "vocab_size": VOCAB, "n_positions": WINDOW, "n_embd": 2 * HEAD, "n_layer": 2, "n_head": 2, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
UNCACHED = {"enable_prefix_caching": False}
ENCODER = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A model family."""

    model: str  # Its class in transformers.
    config: Callable[[], Any]  # Makes its config.
    # The rope parameters that transformers should have for each set, by the set's longest sequence.
    sets: Mapping[int, Any]
    key: Mapping[str, Any]  # Fields of ``additional_config["ropeswitch"]``.
    engine: Mapping[str, Any]  # More arguments of the engine.

    def save(self, folder: Path) -> Path:
        return save(getattr(transformers, self.model), self.config(), folder, 0)

    def reference(self, folder: Path, sets: Mapping[int, Any]) -> StaticReference:
        """What a saved checkpoint should answer; ``sets`` are its own, or others in their form."""
        return (gptj.reference if self.model == "GPTJForCausalLM" else StaticReference.load)(folder, sets)


def family(
    model: str, config: str, sets: Mapping[int, Any] | None = None, ladder: str = "auto", **fields: Any
) -> Family:
    engine = fields.pop("engine", {})
    return Family(
        model, lambda: getattr(transformers, config)(**fields), sets or yarn_sets(PLAIN), {"ladder": ladder}, engine
    )


def trained(rope: Mapping[str, Any]) -> dict[int, Any]:
    """The sets of a model that was trained with YaRN x2: its own scaling, then larger factors on the same window."""
    return {2 * WINDOW: None} | {end: dict(rope) | {"factor": end / WINDOW} for end in (256, LONGEST)}


FAMILIES = {
    # Layers of full attention with a base of their own.
    "gemma3": family(
        "Gemma3ForCausalLM", "Gemma3TextConfig", query_pre_attn_scalar=HEAD,
        rope_parameters={"full_attention": PLAIN, "sliding_attention": LOCAL}, **TEXT, **SLIDING,
    ),
    # Both with one base.
    "gemma3-one-base": family(
        "Gemma3ForCausalLM", "Gemma3TextConfig", query_pre_attn_scalar=HEAD,
        rope_parameters={"full_attention": PLAIN, "sliding_attention": PLAIN}, **TEXT, **SLIDING,
    ),
    # As published above 1B: one set for every length.
    "gemma3-linear": family(
        "Gemma3ForCausalLM", "Gemma3TextConfig", {LONGEST: None}, query_pre_attn_scalar=HEAD, **LONG | SLIDING,
        rope_parameters={
            "full_attention": PLAIN | {"rope_type": "linear", "factor": 8.0}, "sliding_attention": LOCAL,
        },
    ),
    # Larger heads in layers of full attention, of which only some pairs rotate; transformers has no YaRN of them.
    "gemma4": family(
        "Gemma4ForCausalLM", "Gemma4TextConfig",
        {WINDOW: PROPORTIONAL} | {end: PROPORTIONAL | {"factor": end / WINDOW} for end in (128, 256, LONGEST)},
        f"pi:128,256,{LONGEST}", rope_parameters={"full_attention": PROPORTIONAL, "sliding_attention": LOCAL},
        global_head_dim=2 * HEAD, hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCAB,
        num_kv_shared_layers=0, **TEXT, **SLIDING,
    ),
    # Scaling that the model was trained with.
    "gpt-oss": family(
        "GptOssForCausalLM", "GptOssConfig", trained(GPT_OSS), rope_parameters=GPT_OSS, num_local_experts=4,
        # Half of it is a size that vLLM's experts on CPUs take, for two ranks.
        num_experts_per_tok=2, **TWICE | {"intermediate_size": 128}, **SLIDING,
    ),
    "llama4": family("Llama4ForCausalLM", "Llama4TextConfig", rope_parameters=PLAIN, **LLAMA4),
    # As published: one set for every length.
    "llama4-scout": family(
        "Llama4ForCausalLM", "Llama4TextConfig", {LONGEST: None}, rope_parameters=SCOUT,
        **LLAMA4 | {"max_position_embeddings": LONGEST},
    ),
    "ministral3": family(
        "Ministral3ForCausalLM", "Ministral3Config", trained(MINISTRAL), rope_parameters=MINISTRAL, **TWICE,
    ),
    # Hybrids: attention and recurrent layers.
    "falcon-h1": family(
        "FalconH1ForCausalLM", "FalconH1Config", rope_parameters=PLAIN, mamba_d_ssm=128, mamba_n_heads=4,
        mamba_d_head=32, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=16, engine=UNCACHED, **TEXT,
    ),
    "granite-hybrid": family(
        "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", rope_parameters=PLAIN, num_local_experts=0,
        shared_intermediate_size=160, layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=32,
        mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=16, position_embedding_type="rope", engine=UNCACHED,
        **TEXT,
    ),
    "lfm2": family(
        "Lfm2ForCausalLM", "Lfm2Config", rope_parameters=PLAIN, layer_types=["conv", "full_attention"],
        block_multiple_of=32, conv_dim=128, block_dim=128, **TEXT,
    ),
    # A text model inside a multimodal one that gets text alone; vLLM's code for it needs no torchvision.
    "idefics3": family(
        "Idefics3ForConditionalGeneration", "Idefics3Config", vision_config=ENCODER, scale_factor=2,
        text_config=TEXT | {"model_type": "llama", "rope_parameters": PLAIN}, engine={"language_model_only": True},
    ),
    # Transformers' own code, with a base for each type of layer.
    "olmo3": family(
        "Olmo3ForCausalLM", "Olmo3Config", rope_parameters={"full_attention": PLAIN, "sliding_attention": LOCAL},
        engine={"model_impl": "transformers"}, **TEXT, **SLIDING,
    ),
    # No config states its base, and its size is a field of its own.
    "gptj": family("GPTJForCausalLM", "GPTJConfig", yarn_sets(gptj.ROPE), rotary_dim=16, **GPTJ),
    "gptj-whole-heads": family("GPTJForCausalLM", "GPTJConfig", yarn_sets(gptj.ROPE), rotary_dim=HEAD, **GPTJ),
}  # fmt: skip
