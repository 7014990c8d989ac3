"""The sizes of a model, read from its Hugging Face config and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeswitch.deploy.plan.families import FAMILIES, Family
from ropeswitch.deploy.plan.weight_format import WeightFormat, weight_format
from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import LARGEST, is_whole
from ropeswitch.factors.quoted import quoted

# The dtype that `--dtype auto` of vLLM 0.32 (`config/model.py: _resolve_auto_dtype`) picks on a GPU, by the config's dtype.
SERVED_DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "bfloat16"}
DTYPE_BYTES = 2


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder, in values, not bytes.

    Attributes:
        model_type: The config's ``model_type``, a key of ``FAMILIES``.
        layers: Number of decoder layers.
        hidden: Width of the hidden states.
        heads: Query heads per layer.
        kv_heads: Key (and value) heads per layer.
        head_dim: Values per head.
        intermediate: Width of a layer's MLP, or of one expert.
        vocab: Tokens in the vocabulary.
        tied: Whether the output head is the embedding.
        experts: Experts per layer, 0 for a dense model.
        active_experts: Active experts per token, 0 for a dense model.
        qkv_bias: Whether q, k and v have biases.
        o_bias: Whether the attention's output has a bias.
        mlp_bias: Whether the MLP has biases.
        lm_head_bias: Whether the output head has a bias.
        sliding_window: Sliding window of every layer in tokens; None for full attention.
        max_positions: The config's ``max_position_embeddings``, in tokens.
        dtype: The 16-bit type that vLLM serves the model in by default.
        weights: Storage format of the linear layers.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    experts: int
    active_experts: int
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    lm_head_bias: bool
    sliding_window: int | None
    max_positions: int
    dtype: str
    weights: WeightFormat

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def queries_per_kv_head(self) -> int:
        return self.heads // self.kv_heads


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Return a model's sizes.

    Args:
        name: Name of the config in messages.
        config: Values of a ``config.json``.

    Raises:
        UsageError: naming the field, its value and what is allowed.
    """
    try:
        return _read(config)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def _read(config: Mapping[str, Any]) -> ModelShape:
    model_type = config.get("model_type")
    if config.get("kv_lora_rank"):
        raise UsageError(
            f"kv_lora_rank: {quoted(config['kv_lora_rank'])}: the planner does not support latent attention"
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UsageError(f"model_type: {quoted(model_type)} is unsupported; allowed: {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    heads = whole(config, "num_attention_heads")
    kv_heads = whole(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise UsageError(f"num_key_value_heads: {kv_heads} must divide num_attention_heads, {heads}")
    hidden = whole(config, "hidden_size")
    if config.get("head_dim") is None and hidden % heads:
        raise UsageError(
            f"head_dim: missing, and hidden_size {hidden} is not a multiple of num_attention_heads, {heads}"
        )
    experts, active = _experts(config, family)
    attention_bias = _flag(config, "attention_bias")
    return ModelShape(
        model_type=model_type,
        layers=whole(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=whole(config, "head_dim", default=hidden // heads),
        intermediate=whole(config, family.expert_width),
        vocab=whole(config, "vocab_size"),
        tied=_flag(config, "tie_word_embeddings"),
        experts=experts,
        active_experts=active,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=family.mlp_bias and _flag(config, "mlp_bias"),
        lm_head_bias=family.lm_head_bias and _flag(config, "lm_head_bias"),
        sliding_window=_sliding_window(config, family),
        max_positions=whole(config, "max_position_embeddings"),
        dtype=_dtype(config),
        weights=weight_format(config.get("quantization_config")),
    )


def _experts(config: Mapping[str, Any], family: Family) -> tuple[int, int]:
    """Return the experts per layer and the active experts per token; 0 and 0 for a dense model."""
    if not family.experts:
        return 0, 0
    field = next((field for field in family.experts if config.get(field) is not None), family.experts[0])
    experts, active = whole(config, field), whole(config, "num_experts_per_tok")
    if active > experts:
        raise UsageError(f"num_experts_per_tok: {active} must be at most {field}, {experts}")
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise UsageError(
            "mlp_only_layers, decoder_sparse_step: the planner does not support models that mix dense and expert layers"
        )
    return experts, active


def _sliding_window(config: Mapping[str, Any], family: Family) -> int | None:
    """Return the sliding window of every layer; None for full attention."""
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, Sequence) or any(kind != "full_attention" for kind in kinds)):
        raise UsageError(f"layer_types: {quoted(kinds)} is unsupported; every layer must be 'full_attention'")
    if family.window_switch and not _flag(config, "use_sliding_window"):
        return None
    window = config.get("sliding_window", family.default_window)
    # vLLM treats 0 as no window (`config/model.py`).
    return None if window in (None, 0) and not isinstance(window, bool) else whole(config, "sliding_window", window)


def _dtype(config: Mapping[str, Any]) -> str:
    """Return the type vLLM serves in: the config's, or bfloat16 for float32 or if the config has none."""
    dtype = config.get("dtype", config.get("torch_dtype"))
    dtype = "float32" if dtype is None else dtype
    if not isinstance(dtype, str) or dtype not in SERVED_DTYPES:
        raise UsageError(f"torch_dtype: {quoted(dtype)} is unsupported; allowed: {', '.join(SERVED_DTYPES)}")
    return SERVED_DTYPES[dtype]


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{field}: {quoted(value)} must be true or false")
    return bool(value)


def whole(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """Return a field that is a whole number of at least 1, or ``default`` if it is missing or null.

    Raises:
        UsageError: naming the field, its value and what is allowed.
    """
    value = config.get(field)
    value = default if value is None else value
    if value is None:
        raise UsageError(f"{field}: missing")
    if not is_whole(value):
        raise UsageError(f"{field}: {quoted(value)} must be a whole number from 1 to {LARGEST}")
    return value
