"""Puts a ladder on vLLM's engine arguments: checks model and features, and sets what the engine's config is made from."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config, rope_parameters
from ropeswitch.model_patches.switch import parts, patching
from ropeswitch.model_patches.switch.plugin import KEY
from ropeswitch.model_patches.switch.settings import ANGLES, SCHEDULER, WORKERS, RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.unsupported import check_device, check_features, check_model
from ropeswitch.model_patches.switch.validate_params import checking_sets

# What a user may write under the key: one source of the ladder, its base, and fields of `RopeSettings`.
_SOURCES = ("factors", "sets")
_OPTIONS = ("angles", "length_aware", "step_latency_target", "parts")


def configure_from_key(engine_args: Any) -> None:
    """Configure an engine as ``additional_config["ropeswitch"]`` says; a second call changes nothing.

    Args:
        engine_args: ``vllm.EngineArgs``.

    Raises:
        FactorError: for a wrong factor file, ladder or length.
        UnsupportedError: for an unknown field, model or feature.
    """
    from vllm.platforms import current_platform

    check_device(current_platform.device_name)
    check_features(engine_args)
    hf_config = text_config(engine_args)
    settings = settings_from_key(engine_args.additional_config[KEY], hf_config)
    configure(engine_args, settings, hf_config, device_name=current_platform.device_name)
    if parts.SERVER not in settings.parts:
        patching.replace("vllm.v1.engine.input_processor.InputProcessor._validate_params", checking_sets)


def settings_from_key(key: Any, hf_config: Mapping[str, Any]) -> RopeSettings:
    """The settings that a user's key describes.

    Args:
        key: ``{"factors": PATH}``, ``{"sets": [...]}`` or ``{}`` for the model's own LongRoPE factors, and any other field
            of :class:`RopeSettings`.
        hf_config: The model's text config.

    Raises:
        FactorError: for a wrong factor file or ladder, or a model without factors.
        UnsupportedError: for an unknown field or a model that a ladder cannot rotate.
    """
    known = (*_SOURCES, "theta", *_OPTIONS)
    where = f"additional_config.{KEY}"
    if not isinstance(key, Mapping):
        raise UnsupportedError(f"{where}: {key!r} must be a JSON object")
    if unknown := sorted(map(str, set(key) - set(known))):
        raise UnsupportedError(f"{where}.{unknown[0]}: unknown field; allowed are {', '.join(known)}")
    if all(source in key for source in _SOURCES):
        raise UnsupportedError(f"{where}: has both {' and '.join(_SOURCES)}; give one of them")
    _check_options(key, where)
    theta = key.get("theta")
    ladder: FactorLadder | None
    if "factors" in key:
        loaded = file.load(key["factors"])
        ladder, theta = loaded.ladder, loaded.theta if theta is None else theta
    elif "sets" in key:
        ladder = FactorLadder.checked(key["sets"])
    else:
        ladder = ladder_from_config(hf_config)
    if ladder is None:
        raise FactorError(
            f"{where}: the model's config has no LongRoPE factors; name a factor file: {{'factors': PATH}}"
        )
    model_theta = check_model(hf_config, ladder)
    if theta is not None and theta != model_theta:
        raise FactorError(f"{where}: factors made for rope_theta {theta}, but the model's rope_theta is {model_theta}")
    chosen = tuple(key.get("parts", [name for name in parts.PARTS if name != parts.SERVER]))
    settings = RopeSettings(ladder, model_theta, length_aware="scheduling" in chosen)
    settings = replace(settings, **{name: key[name] for name in _OPTIONS if name in key} | {"parts": chosen})
    if "scheduling" not in chosen and (settings.length_aware or settings.step_latency_target is not None):
        raise UnsupportedError(f"{where}.parts: length_aware and step_latency_target need the part 'scheduling'")
    return settings


def _check_options(key: Mapping[str, Any], where: str) -> None:
    """Refuse values of the wrong kind in a user's JSON."""
    target = key.get("step_latency_target")
    chosen = key.get("parts", [])
    known = isinstance(chosen, list) and all(name in list(parts.PARTS) for name in chosen)
    for name, fits, allowed in (
        ("factors", isinstance(key.get("factors", ""), str), "the path of a factor file"),
        ("theta", key.get("theta") is None or _is_number(key["theta"]), "a number, or null"),
        ("angles", key.get("angles", ANGLES[0]) in ANGLES, f"one of {', '.join(ANGLES)}"),
        ("length_aware", isinstance(key.get("length_aware", True), bool), "true or false"),
        (
            "step_latency_target",
            target is None or (_is_number(target) and 0 < target <= 60),
            "a number of seconds above 0 and at most 60, or null",
        ),
        ("parts", known, f"a list of any of {', '.join(parts.PARTS)}"),
    ):
        if not fits:
            raise UnsupportedError(f"{where}.{name}: {key[name]!r} must be {allowed}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def text_config(engine_args: Any) -> dict[str, Any]:
    """The model's Hugging Face text config with ``hf_overrides`` applied, as ``vllm.config.ModelConfig`` does.

    Raises:
        UnsupportedError: for a model that nests its text model's config.
    """
    from vllm.config import ModelConfig
    from vllm.transformers_utils.config import get_config, get_hf_text_config

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
    nested = {key: value for key, value in overrides.items() if isinstance(value, dict)}
    ModelConfig.__new__(ModelConfig)._apply_dict_overrides(config, nested)
    text = get_hf_text_config(config)
    if text is not config:
        raise UnsupportedError(f"MODEL: {source!r} nests its text model's config; only plain text models are supported")
    values: dict[str, Any] = text.to_dict()
    return values


def configure(engine_args: Any, settings: RopeSettings, hf_config: Mapping[str, Any], *, device_name: str) -> None:
    """Put a ladder on an engine that is about to be built.

    The Hugging Face config says that the model has plain RoPE up to the ladder's end, so that no part of vLLM sizes,
    scales or limits anything by the LongRoPE fields; the rotary module, which takes its angles from the ladder alone, is
    then put in (see ``rope_dict.py``).

    Args:
        engine_args: ``vllm.EngineArgs``, or the namespace that ``vllm serve``'s parser makes.
        settings: The ladder to serve with.
        hf_config: The model's text config as a dict, with the user's own overrides applied.
        device_name: ``vllm.platforms.current_platform.device_name``, one of :data:`WORKERS`.

    Raises:
        FactorError: when ``max_model_len`` exceeds the ladder's end.
        UnsupportedError: when the user chose a scheduler or worker class of their own.
    """
    for field in ("scheduler_cls", "worker_cls"):
        chosen = getattr(engine_args, field)
        if chosen not in (None, "auto") and not str(chosen).startswith("ropeswitch.model_patches."):
            raise UnsupportedError(f"{field}: {chosen!r} cannot be combined with a factor ladder, which brings its own")
    rope = rope_parameters(hf_config)
    plain = {"rope_type": "default", "rope_theta": settings.theta}
    if rope.get("partial_rotary_factor") is not None:
        plain["partial_rotary_factor"] = rope["partial_rotary_factor"]
    overrides = dict(engine_args.hf_overrides or {})
    overrides |= {"rope_parameters": plain, "max_position_embeddings": settings.ladder.max_length}
    engine_args.hf_overrides = overrides
    engine_args.max_model_len = checked_max_model_len(engine_args.max_model_len, settings.ladder)
    engine_args.scheduler_cls = SCHEDULER
    engine_args.worker_cls = WORKERS[device_name]
    engine_args.additional_config = dict(engine_args.additional_config or {}) | {KEY: settings.to_json()}
    parts.call("attach", settings.parts, engine_args, settings)


def checked_max_model_len(requested: int | None, ladder: FactorLadder) -> int:
    """The model length to serve: the ladder's end unless the user asked for less; -1 (auto) stays.

    Raises:
        FactorError: when the request exceeds the ladder's end.
    """
    if requested is None:
        return ladder.max_length
    if requested != -1 and requested > ladder.max_length:
        raise FactorError(
            f"max_model_len: {requested} exceeds {ladder.max_length}, where the last factor set, "
            f"{ladder.sets[-1].name!r}, ends"
        )
    return requested
