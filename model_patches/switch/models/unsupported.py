"""Refuses models and features that cannot be rotated per request, with the reason, before the engine starts."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.ladders.softmax import softmax_slope
from ropeswitch.factors.numbers import positive_value
from ropeswitch.factors.rope_layers import AXIS_TYPES, axes_of
from ropeswitch.factors.rules.rope import base_of, rope_from_config
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import WORKERS, RopeSettings, UnsupportedError, settings_of
from ropeswitch.model_patches.switch.kv.connectors import check_connected_engine, check_connector

# Config fields of layers that attend to tokens picked by an indexer, in order: DeepSeek, GLM and Hunyuan; Qwen; MiniMax.
INDEXERS = ("index_topk", "indexer_budget", "sparse_attention_config")
# Qwen 4, whose indexer also rotates by the positions of groups (``group_rows.py``).
QWEN4 = {"Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"}
# Architectures whose indexer otherwise rotates by exactly the positions that it is given: from a table
# (``table_readers.py``), or, as Hunyuan's, with rotary modules.
INDEXED = {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "HYV4ForCausalLM", *QWEN4}
# Parameters of Fourier position embeddings.
FOURIER = ("use_fope", "fope_init_factor", "fope_sep_head", "num_inv_freq")


def check_model(hf_config: Mapping[str, Any], ladder: FactorLadder) -> float:
    """Return the rotary base of a model, by its text config; refuse one whose rotary embedding the ladder cannot replace.

    Raises:
        UnsupportedError: with the config field, its value and the reason.
    """
    theta = check_rotation(hf_config)
    # Rotated values per head; None if the config does not say, as the rotary module then checks.
    expected: int | None = None
    with suppress(FactorError):
        expected = rope_from_config(hf_config, original_length=7).rotary_dim
    if expected is not None and expected != ladder.rotary_dim:
        raise UnsupportedError(
            f"factors: each set has {ladder.rotary_dim // 2} factors, but the model rotates {expected} of its head's "
            f"values and needs {expected // 2}"
        )
    check_softmax_scales(hf_config, ladder)
    layers = hf_config.get("num_hidden_layers", hf_config.get("n_layer"))
    if ladder.layers and ladder.layers != layers:
        raise UnsupportedError(f"sets.layers: {ladder.layers} layers, but the model's num_hidden_layers is {layers}")
    rope = rope_parameters(hf_config)
    if expected is not None and rope.get("mrope_section") is not None:
        axes_of(rope, expected // 2)
    return theta


def check_rotation(hf_config: Mapping[str, Any]) -> float:
    """Like :func:`check_model`, for a model that no ladder can rotate."""
    rope = rope_parameters(hf_config)
    if rope["rope_type"] in AXIS_TYPES or rope.get("xdrope_section") or hf_config.get("xdrope_section"):
        raise UnsupportedError(
            f"rope_parameters.rope_type: {rope['rope_type']!r}: positions on several axes are supported as mrope_section "
            "alone, with three sizes"
        )
    verified = set(hf_config.get("architectures") or ()) & INDEXED
    for field in INDEXERS:
        if not verified and (value := hf_config.get(field)) is not None:
            where = field if isinstance(value, Mapping) else f"{field}: {value}"
            raise UnsupportedError(
                f"{where}: the indexer of sparse attention rotates in kernels of its own, which read cos and sin by position"
            )
    check_latent_attention(hf_config)
    if hf_config.get("dual_chunk_attention_config"):
        raise UnsupportedError("dual_chunk_attention_config: dual chunk attention remaps positions inside the layer")
    # Intern-S1-Pro's config enables them with any of these parameters.
    if fourier := [field for field in FOURIER if rope.get(field) not in (None, False)]:
        raise UnsupportedError(f"rope_parameters.{fourier[0]}: Fourier position embeddings learn their own angles")
    theta = rope.get("rope_theta")
    if theta is None:
        raise UnsupportedError("rope_theta: missing; the config states no rotary base that a ladder could scale")
    theta = positive_value("rope_theta", theta)
    bases = hf_config.get("layer_rope_theta") or []
    if not isinstance(bases, list) or any(base and base != theta for base in bases):
        raise UnsupportedError(f"layer_rope_theta: sets separate bases for some layers: {bases!r}")
    # MiMo-V2's layers use rope_theta if the config omits swa_rope_theta.
    default = theta if str(hf_config.get("model_type")).startswith("mimo_v2") else None
    if hf_config.get("swa_rope_theta", default) == theta:
        raise UnsupportedError(
            f"swa_rope_theta: {theta} equals rope_theta: full-attention and sliding-window layers cannot be distinguished"
        )
    partial = rope.get("partial_rotary_factor", 1.0)
    if isinstance(partial, bool) or not isinstance(partial, int | float) or not 0 < partial <= 1:
        raise UnsupportedError(f"partial_rotary_factor: {partial!r} must be a number above 0 and up to 1")
    return base_of(rope)


def check_latent_attention(hf_config: Mapping[str, Any]) -> None:
    """Refuse a text config with multi-head latent attention that a ladder cannot rotate; pass every other config.

    Raises:
        UnsupportedError: with the config field, its value and the reason.
        FactorError: for ambiguous YaRN parameters.
    """
    if not hf_config.get("kv_lora_rank"):
        return
    rope = rope_parameters(hf_config)
    for key in ("llama_4_scaling", "llama_4_scaling_beta"):
        if rope.get(key) or hf_config.get(key):
            raise UnsupportedError(
                f"{key}: DeepSeek's layers scale attention by raw positions, which the model does not get"
            )
    # vLLM's layers rotate interleaved pairs regardless of this field.
    if hf_config.get("rope_interleave") is False:
        raise UnsupportedError("rope_interleave: false: vLLM's latent attention rotates interleaved pairs only")
    softmax_slope(hf_config)


def check_softmax_scales(hf_config: Mapping[str, Any], ladder: FactorLadder) -> None:
    """Refuse a ladder whose softmax scales do not fit the model; ``softmax_scales.py`` checks the layers.

    Raises:
        UnsupportedError: naming the set and the ``softmax_scale`` that it needs.
    """
    slope = softmax_slope(hf_config)
    for index, each in enumerate(ladder.sets):
        if each.softmax_scale is None and slope is not None:
            raise UnsupportedError(
                f"sets[{index}].softmax_scale: missing; the model's config scales the softmax (mscale_all_dim {slope:g}), "
                "so each set must state its own: (0.1 * mscale_all_dim * ln(factor) + 1) ** 2 for YaRN, 1 for none"
            )
        if each.softmax_scale not in (None, 1.0) and not hf_config.get("kv_lora_rank"):
            raise UnsupportedError(
                f"sets[{index}].softmax_scale: {each.softmax_scale}: allowed only for multi-head latent attention "
                "(kv_lora_rank); leave it out"
            )


def check_features(engine_args: Any) -> None:
    """Refuse features, by ``EngineArgs`` or the namespace of ``vllm serve``'s parser, that would rotate wrongly.

    Raises:
        UnsupportedError: with the flag, its value and the reason.
    """
    # Imported here: the planner checks models where vLLM is not installed.
    from vllm import envs

    for field in ("speculative_config", "hf_overrides", "additional_config"):
        value = getattr(engine_args, field)
        if value is not None and not isinstance(value, Mapping):
            raise UnsupportedError(f"{field}: {value!r} must be a JSON object")
    if envs.VLLM_USE_RUST_FRONTEND:
        raise UnsupportedError(
            "VLLM_USE_RUST_FRONTEND: this front end sends prompts to the engine without a factor set, which vLLM's "
            "InputProcessor chooses; unset it"
        )
    speculative = engine_args.speculative_config or {}
    _check_drafts(speculative.get("method"), speculative.get("rejection_sample_method"))
    check_connector(engine_args.kv_transfer_config)


def check_engine(vllm_config: Any) -> RopeSettings:
    """Return the settings of a resolved ``VllmConfig``; refuse one that would rotate wrongly. Runs in every process.

    Raises:
        UnsupportedError: with the field, its value and the reason.
    """
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if (settings := settings_of(vllm_config)) is None:
        raise UnsupportedError(
            f"additional_config: has no {KEY} settings; start the engine with ropeswitch serve, or set the key"
        )
    if speculative is not None:
        # A checkpoint may include a draft model that no flag names.
        _check_drafts(speculative.method, speculative.rejection_sample_method)
    if (size := parallel.prefill_context_parallel_size) > 1:
        raise UnsupportedError(
            f"prefill_context_parallel_size: {size}: split prefills are not verified with a factor ladder; allowed: 1"
        )
    size, window = parallel.decode_context_parallel_size, vllm_config.cache_config.sliding_window
    if size > 1 and window is not None:
        raise UnsupportedError(
            f"decode_context_parallel_size: {size}: the model's sliding window of {window} tokens bounds its cache already, "
            "and vLLM does not split such caches over ranks; allowed: 1"
        )
    if parallel.use_ubatching:
        raise UnsupportedError("enable_dbo, ubatch_size: dual batch overlap is not verified with a factor ladder")
    check_connected_engine(vllm_config)
    media = vllm_config.model_config.multimodal_config if is_qwen4(vllm_config) else None
    if media is not None and not media.language_model_only:
        raise UnsupportedError(
            "language_model_only: False: the indexer of sparse attention rotates groups of keys by their first positions, "
            "which a ladder knows of text alone; use --language-model-only"
        )
    if vllm_config.model_config.is_encoder_decoder:
        raise UnsupportedError("model: has an encoder and a decoder; only decoders are supported")
    if parallel.enable_elastic_ep:
        raise UnsupportedError("enable_elastic_ep: True: engines that change size while they run are not patched")
    if vllm_config.model_config.use_mla and vllm_config.model_config.using_transformers_backend():
        raise UnsupportedError(
            "model_impl: 'transformers': latent attention is verified in vLLM's own models only; allowed: auto, vllm"
        )
    return settings


def is_qwen4(vllm_config: Any) -> bool:
    """Whether the engine's model is one of :data:`QWEN4`."""
    return bool(set(vllm_config.model_config.architectures) & QWEN4)


def check_device(device_name: str) -> None:
    """Refuse a platform, by ``current_platform.device_name``, whose model runner is not patched.

    Raises:
        UnsupportedError: for anything but CPUs and NVIDIA GPUs.
    """
    if device_name not in WORKERS:
        raise UnsupportedError(
            f"device: {device_name!r}: its model runner is not patched; allowed: {', '.join(WORKERS)}"
        )


def _check_drafts(method: str | None, rejection_sample_method: str | None) -> None:
    """Refuse speculative decoding that changes tokens or drafts nothing."""
    if rejection_sample_method not in (None, "standard", "block"):
        raise UnsupportedError(
            f"speculative_config.rejection_sample_method: {rejection_sample_method!r} accepts drafts that the model does "
            "not predict; allowed: standard, block"
        )
    if method == "extract_hidden_states":
        raise UnsupportedError(
            f"speculative_config.method: {method!r} drafts nothing and hands hidden states to a KV connector, without the "
            "factor set that made them; leave it out"
        )
