"""The model's text config, its path in the whole config, and the fields that a ladder overrides in it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import YARN_COEFFICIENTS, rope_parameters
from ropeswitch.factors.ladders.native import LENGTH_FIELDS
from ropeswitch.factors.places import base_place, check_effect, check_places
from ropeswitch.factors.rope_layers import FULL, marked
from ropeswitch.factors.rules.rope import PROPORTIONAL
from ropeswitch.model_patches.switch.config.packages import check_torchvision
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError

# Keys of plain rope parameters that models read in addition to base and type.
KEPT = ("partial_rotary_factor", "rope_dim", "mrope_section", "mrope_interleaved")
# Values that mean the same as none.
_UNSTATED = {"partial_rotary_factor": 1.0}
# Models that read their scaling parameters themselves, so the config keeps them.
SCALING_READERS = ("GptOssForCausalLM",)


class TextConfig(dict[str, Any]):
    """A model's Hugging Face text config."""

    path: tuple[str, ...] = ()
    """Names of the fields that lead from the model's config to it; empty if they are the same."""
    base: str = ""
    """Where its ``rope_theta`` comes from, as in :func:`~ropeswitch.factors.places.base_line`."""


def text_config(engine_args: Any) -> TextConfig:
    """Return the text config of ``EngineArgs`` or a parsed namespace, with ``hf_overrides`` applied as by ``ModelConfig``.

    Raises:
        FactorError: for a config whose two blocks of rotary parameters differ.
        UnsupportedError: for a diffusion model, a text config that is not a field of the config, or a missing package.
    """
    from vllm.config import ModelConfig
    from vllm.transformers_utils.config import get_config, get_hf_text_config
    from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

    source = engine_args.hf_config_path or engine_args.model
    overrides = engine_args.hf_overrides or {}
    config = get_config(
        source,
        engine_args.trust_remote_code,
        engine_args.revision,
        engine_args.code_revision,
        engine_args.config_format,
        hf_overrides_kw={key: value for key, value in overrides.items() if not isinstance(value, dict)},
        token=engine_args.hf_token,
    )
    # The config object has one block: the other was dropped while it was read. The file is local or in the cache by now.
    if written := get_hf_file_to_dict("config.json", source, engine_args.revision):
        check_places(written)
    nested = {key: value for key, value in overrides.items() if isinstance(value, dict)}
    before = dict(getattr(get_hf_text_config(config), "rope_parameters", None) or {})
    ModelConfig.__new__(ModelConfig)._apply_dict_overrides(config, nested)
    _check_dropped(before, getattr(get_hf_text_config(config), "rope_parameters", None) or {}, overrides)
    if (length := getattr(config, "canvas_length", None)) is not None:
        # Upstream refuses diffusion models only on the V1 runner, with another message.
        raise UnsupportedError(
            f"canvas_length: {length}: a diffusion model rewrites tokens and keeps a state that no ladder reaches; only "
            "models that append tokens are supported"
        )
    check_torchvision(getattr(config, "architectures", None) or ())
    text = get_hf_text_config(config)
    path = next(_paths(config, text), None)
    if path is None:
        raise UnsupportedError(f"MODEL: {source!r} builds its text config in code, where no ladder can override it")
    values = TextConfig(text.to_dict())
    _restore_name(values, written or {})
    values.path = path
    values.base = "the flag --hf-overrides" if base_place(overrides) else base_place(written or {})
    effect = rope_parameters(values)
    try:
        check_effect(overrides, effect)
    except FactorError as error:
        raise UnsupportedError(f"--hf-overrides: {error}") from error
    # What the overrides replace is not in effect.
    if not base_place(overrides) and not _blocks(overrides):
        check_effect(written or {}, effect)
    # A nested config does not name the model's class.
    values["architectures"] = values.get("architectures") or getattr(config, "architectures", None)
    return values


def _restore_name(values: dict[str, Any], written: Mapping[str, Any]) -> None:
    """Undo ``patch_legacy_rope_type``, which turns a vendor's YaRN rule into the attention factor of one length."""
    inner = written.get("text_config")
    inner = inner if isinstance(inner, Mapping) else written
    block = inner.get("rope_scaling") or written.get("rope_parameters") or {}
    name = block.get("rope_type", block.get("type"))
    rope = values.get("rope_parameters")
    if name in YARN_COEFFICIENTS and rope and rope.get("rope_type") == "yarn":
        kept = {key: value for key, value in rope.items() if key != "attention_factor"}
        values["rope_parameters"] = kept | {"rope_type": name}


def _blocks(overrides: Mapping[str, Any]) -> list[str]:
    """Return the names of the blocks of rotary parameters in overrides, at any level."""
    inner = [name for value in overrides.values() if isinstance(value, Mapping) for name in _blocks(value)]
    return [name for name in ("rope_parameters", "rope_scaling") if name in overrides] + inner


def _check_dropped(before: Mapping[str, Any], after: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Refuse overrides that drop what the checkpoint states: an object in them replaces the config's whole one."""
    before, after = (each[FULL] if isinstance(each.get(FULL), Mapping) else each for each in (before, after))
    # Another rule has other parameters; these belong to the model.
    kept = set(before) if before.get("rope_type") == after.get("rope_type") else set(KEPT)
    dropped = {
        key: value
        for key, value in before.items()
        if key in (kept | {"rope_theta"}) and value not in (None, _UNSTATED.get(key)) and after.get(key) is None
    }
    if dropped:
        raise UnsupportedError(
            f"--hf-overrides: {' and '.join(_blocks(overrides)) or 'they'} replaces that of the model's config, and drops "
            f"{', '.join(f'{key} {value!r}' for key, value in dropped.items())}. "
            "Leave it out: --max-model-len LENGTH extends the context, and --ladder chooses the rule. Or add "
            f"{', '.join(f'{json.dumps(key)}: {json.dumps(value)}' for key, value in dropped.items())} to it"
        )


def overrides(hf_config: Mapping[str, Any], settings: RopeSettings) -> dict[str, Any]:
    """Return the fields to override in the text config, which state plain rotary embeddings up to the ladder's end.

    With them, no part of vLLM sizes, scales or limits anything by the config's scaling.
    """
    ladder: FactorLadder = settings.ladder
    # vLLM uses the shortest length that a config states anywhere.
    fields: dict[str, Any] = {field: ladder.max_length for field in LENGTH_FIELDS if hf_config.get(field) is not None}
    fields |= {"max_position_embeddings": ladder.max_length}
    if set(hf_config.get("architectures") or ()) & set(SCALING_READERS):
        return fields
    rope = rope_parameters(hf_config)
    if rope.get("llama_4_scaling_beta") is not None:
        # vLLM reads it only in Mistral's own format, and would ignore it in a transformers checkpoint.
        window = rope.get("original_max_position_embeddings")
        fields["llama_4_scaling"] = {"beta": rope["llama_4_scaling_beta"], "original_max_position_embeddings": window}
    kind = rope["rope_type"] if rope["rope_type"] == PROPORTIONAL else "default"
    plain = {"rope_type": kind, "rope_theta": rope["rope_theta"]}
    plain |= {key: rope[key] for key in KEPT if rope.get(key) is not None}
    # vLLM merges overrides into a nested config, and would multiply the maximum length by a leftover factor.
    path: tuple[str, ...] = getattr(hf_config, "path", ())
    plain |= {"factor": 1.0} if path and rope.get("factor") is not None else {}
    return fields | marked(hf_config, plain)


def with_overrides(
    chosen: Mapping[str, Any], hf_config: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the user's ``hf_overrides`` with ``fields`` added at the path of the text config, a :class:`TextConfig`."""
    merged = dict(chosen)
    inner = merged
    for name in getattr(hf_config, "path", ()):
        inner[name] = dict(inner.get(name) or {})
        inner = inner[name]
    inner |= fields
    return merged


def _paths(config: Any, text: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths from a config to ``text`` through nested configs."""
    if config is text:
        yield before
        return
    for name, value in vars(config).items():
        if not name.startswith("_") and hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _paths(value, text, (*before, name))
