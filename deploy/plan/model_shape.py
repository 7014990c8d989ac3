"""The sizes of a model, read from its Hugging Face config and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeswitch.deploy.plan.families import FAMILIES, Family
from ropeswitch.deploy.plan.weight_format import WeightFormat, weight_format
from ropeswitch.factors.errors import FactorError, UsageError
from ropeswitch.factors.numbers import whole_value
from ropeswitch.factors.quoted import quoted

# Types that `--dtype auto` of vLLM 0.32 (`config/model.py: _resolve_auto_dtype`) serves in 16 bits on a GPU.
DTYPES = ("float16", "bfloat16", "float32")
DTYPE_BYTES = 2


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder, in values, not bytes; named after the config's fields, per layer where that applies.

    ``intermediate`` is the width of the MLP, or of one expert; a dense model has 0 ``experts``. ``sliding_window`` in tokens
    is None for full attention.
    """

    family: Family
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
    weights: WeightFormat


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Return the sizes in a ``config.json``; a UsageError names the config, the field, its value and what is allowed."""
    try:
        return _read(config)
    except FactorError as error:
        raise UsageError(f"{name}: {error}") from error


def _read(config: Mapping[str, Any]) -> ModelShape:
    def whole(field: str, default: int | None = None) -> int:
        value = config.get(field)
        return whole_value(field, default if value is None else value)

    def flag(field: str) -> bool:
        if (value := config.get(field)) is not None and not isinstance(value, bool):
            raise FactorError(f"{field}: {quoted(value)} must be true or false")
        return bool(value)

    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise FactorError(f"model_type: {quoted(model_type)} is unsupported; allowed: {', '.join(FAMILIES)}")
    family, hidden, heads = FAMILIES[model_type], whole("hidden_size"), whole("num_attention_heads")
    kv_heads = whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise FactorError(f"num_key_value_heads: {kv_heads} must divide num_attention_heads, {heads}")
    if config.get("head_dim") is None and hidden % heads:
        raise FactorError(
            f"head_dim: missing, and hidden_size {hidden} is not a multiple of num_attention_heads, {heads}"
        )
    experts = active = 0
    if family.experts:
        field = next((field for field in family.experts if config.get(field) is not None), family.experts[0])
        experts, active = whole(field), whole("num_experts_per_tok")
        if active > experts:
            raise FactorError(f"num_experts_per_tok: {active} must be at most {field}, {experts}")
        if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
            raise FactorError(
                "mlp_only_layers, decoder_sparse_step: the planner does not support models that mix dense and expert layers"
            )
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, Sequence) or any(kind != "full_attention" for kind in kinds)):
        raise FactorError(f"layer_types: {quoted(kinds)} is unsupported; every layer must be 'full_attention'")
    window = config.get("sliding_window", family.default_window)
    # vLLM treats 0 as no window (`config/model.py`).
    unused = family.window_switch and not flag("use_sliding_window")
    if unused or (window in (None, 0) and not isinstance(window, bool)):
        window = None
    else:
        window = whole_value("sliding_window", window)
    if (dtype := config.get("dtype", config.get("torch_dtype"))) not in (None, *DTYPES):
        raise FactorError(f"torch_dtype: {quoted(dtype)} is unsupported; allowed: {', '.join(DTYPES)}")
    attention_bias = flag("attention_bias")
    return ModelShape(
        family=family,
        model_type=model_type,
        layers=whole("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=whole("head_dim", hidden // heads),
        intermediate=whole(family.expert_width),
        vocab=whole("vocab_size"),
        tied=flag("tie_word_embeddings"),
        experts=experts,
        active_experts=active,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=family.mlp_bias and flag("mlp_bias"),
        lm_head_bias=family.lm_head_bias and flag("lm_head_bias"),
        sliding_window=window,
        weights=weight_format(config.get("quantization_config")),
    )
