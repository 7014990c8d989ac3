"""Applies a ladder to vLLM's engine arguments: checks the model and features, and sets the fields that the ladder needs."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ropeswitch.factors.errors import FieldError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.ladders.choice import AUTO, EXAMPLES, parse
from ropeswitch.factors.ladders.choose import check_length, choose, from_file, from_sets
from ropeswitch.factors.ladders.made import MadeLadder, Origin
from ropeswitch.factors.numbers import is_number, is_whole
from ropeswitch.factors.places import base_line
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.config import variables
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import (
    ANGLES,
    MOST_STEP_SECONDS,
    POLICIES,
    RESERVE,
    RESERVES,
    SCHEDULER,
    WORKERS,
    RopeSettings,
    UnsupportedError,
)
from ropeswitch.model_patches.switch.config.text_config import overrides, text_config, with_overrides
from ropeswitch.model_patches.switch.config.variables import SOURCES
from ropeswitch.model_patches.switch.engine import patching
from ropeswitch.model_patches.switch.engine.process_inputs import LIMIT, keeping_length, placing
from ropeswitch.model_patches.switch.kv import connectors
from ropeswitch.model_patches.switch.models.unsupported import check_device, check_features, check_model, check_rotation
from ropeswitch.model_patches.switch.releases import in_release

# A child of vLLM's logger, to inherit its format and level.
logger = logging.getLogger("vllm.ropeswitch")

# Fields of `RopeSettings` that a user may set under the key, in addition to the ladder's source and base.
_OPTIONS = ("angles", "policy", "length_aware", "step_latency_target", "parts")


def configure_from_key(engine_args: Any) -> None:
    """Configure ``vllm.EngineArgs`` from ``additional_config["ropeswitch"]`` and the environment; idempotent.

    Raises:
        FactorError: for an invalid factor file, ladder or length.
        UnsupportedError: for an unknown field, or an unsupported model or feature.
        UsageError: for an unknown environment variable, or two that name a ladder.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    check_device(current_platform.device_name)
    check_features(engine_args)
    hf_config = text_config(engine_args)
    key, names = variables.filled((engine_args.additional_config or {}).get(KEY, {}), os.environ)
    settings, made = settings_from_key(key, hf_config, engine_args.max_model_len, names)
    # A key with origins was written by `configure`, whose caller has already shown the ladder.
    if "origins" not in key:
        base = base_line(settings.theta, hf_config.base, str(hf_config.get("model_type")))
        for line in (*made.lines(engine_args.max_model_len), base, *([RESERVES] if settings.policy == RESERVE else [])):
            logger.info("ropeswitch: %s", line)
    # `AsyncEngineArgs` come from `vllm serve` and other users of `AsyncLLM`.
    settings = replace(settings, fills_in_limits=isinstance(engine_args, AsyncEngineArgs))
    configure(engine_args, settings, hf_config, device_name=current_platform.device_name)
    patching.replace("vllm.v1.engine.input_processor.InputProcessor.process_inputs", placing)
    if in_release(LIMIT):
        patching.replace(LIMIT, keeping_length)


def settings_from_key(
    key: Any,
    hf_config: Mapping[str, Any],
    max_model_len: int | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> tuple[RopeSettings, MadeLadder]:
    """Return the settings that a user's key describes, and the ladder in them with the origin of each set.

    Args:
        key: ``{"ladder": TEXT}`` as in ``--ladder``, ``{"factors": PATH}``, ``{"sets": [...]}`` or ``{}`` for the automatic
            ladder, plus any other fields of :class:`RopeSettings`.
        hf_config: The model's text config.
        max_model_len: Maximum sequence length to serve, in tokens; None or -1 if the user sets none.
        names: By field, the name to use in errors if the field did not come from the key.

    Raises:
        FactorError: for an invalid factor file or ladder, or a model without a ladder.
        UnsupportedError: for an unknown field or a model that a ladder cannot rotate.
    """
    known = (*SOURCES, "native_window", "theta", "origins", "fills_in_limits", *_OPTIONS)
    where = f"additional_config.{KEY}"
    if not isinstance(key, Mapping):
        raise UnsupportedError(f"{where}: {key!r} must be a JSON object")
    if unknown := sorted(map(str, set(key) - set(known))):
        raise UnsupportedError(f"{where}.{unknown[0]}: unknown field; allowed: {', '.join(known)}")
    if "origins" in key and "sets" not in key:
        raise UnsupportedError(f"{where}.origins: goes with sets; leave it out")
    if len(given := [source for source in SOURCES if source in key]) > 1:
        raise UnsupportedError(f"{where}: has both {' and '.join(given)}; give one of them")
    _check_options(key, where)
    check_rotation(hf_config)
    try:
        made = _made(key, hf_config, max_model_len, where)
    except FieldError as error:
        words = {field: names.get(field, f"{where}.{field}") for field in ("ladder", "factors", "native_window")}
        raise FactorError(error.worded({**words, "max_model_len": "max_model_len"})) from error
    theta = key.get("theta", made.theta)
    model_theta = check_model(hf_config, made.ladder)
    if theta is not None and theta != model_theta:
        raise FactorError(f"{where}: factors made for rope_theta {theta}, but the model's rope_theta is {model_theta}")
    chosen = tuple(key.get("parts", parts.PARTS))
    settings = RopeSettings(made.ladder, model_theta, length_aware="scheduling" in chosen, origins=made.origins)
    settings = replace(settings, **{name: key[name] for name in _OPTIONS if name in key} | {"parts": chosen})
    if "scheduling" not in chosen and (settings.length_aware or settings.step_latency_target is not None):
        raise UnsupportedError(f"{where}.parts: length_aware and step_latency_target need the part 'scheduling'")
    return settings, made


def _made(key: Mapping[str, Any], hf_config: Mapping[str, Any], max_model_len: int | None, where: str) -> MadeLadder:
    window = key.get("native_window")
    if "sets" in key:
        origins = [Origin.from_json(each) for each in key.get("origins", ())]
        made = from_sets(key["sets"], f"{where}.sets", tuple(origins))
    elif "factors" in key:
        made = from_file(key["factors"])
    else:
        return choose(parse(key.get("ladder", AUTO)), hf_config, max_model_len, window)
    if window is not None:
        text = "{window} cannot be combined with listed factors; leave it out"
        raise FieldError("native_window", text, window=window)
    return made


def _check_options(key: Mapping[str, Any], where: str) -> None:
    """Refuse invalid values in a user's JSON."""
    window, theta, target = key.get("native_window"), key.get("theta"), key.get("step_latency_target")
    chosen = key.get("parts", [])
    known = isinstance(chosen, list) and all(name in list(parts.PARTS) for name in chosen)
    for name, fits, allowed in (
        ("ladder", isinstance(key.get("ladder", ""), str), f"a string: {EXAMPLES}"),
        ("factors", isinstance(key.get("factors", ""), str), "the path of a factor file"),
        ("origins", _are_origins(key.get("origins", [])), "what ropeswitch wrote: a list, one object for each set"),
        ("native_window", window is None or is_whole(window), "a number of tokens above 0"),
        ("theta", theta is None or is_number(theta), "a number, or null"),
        ("angles", key.get("angles", ANGLES[0]) in ANGLES, f"one of {', '.join(ANGLES)}"),
        ("policy", key.get("policy", POLICIES[0]) in POLICIES, f"one of {', '.join(POLICIES)}"),
        ("length_aware", isinstance(key.get("length_aware", True), bool), "true or false"),
        (
            "step_latency_target",
            target is None or (is_number(target) and 0 < target <= MOST_STEP_SECONDS),
            f"a number of seconds above 0 and at most {MOST_STEP_SECONDS:g}, or null",
        ),
        ("parts", known, f"a list of any of {', '.join(parts.PARTS)}"),
    ):
        if not fits:
            raise UnsupportedError(f"{where}.{name}: {key[name]!r} must be {allowed}")


def _are_origins(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping)
        and set(each) == {"factor", "source"}
        and (each["factor"] is None or is_number(each["factor"]))
        and isinstance(each["source"], str)
        for each in value
    )


def configure(engine_args: Any, settings: RopeSettings, hf_config: Mapping[str, Any], *, device_name: str) -> None:
    """Apply a ladder to an engine that is about to be built.

    Overrides the Hugging Face config to state plain RoPE up to the ladder's end (``text_config.py``). The rotary module,
    which takes its angles from the ladder alone, is installed later (``rope_dict.py``).

    ``engine_args`` is ``vllm.EngineArgs`` or the namespace from ``vllm serve``'s parser; ``hf_config`` is the model's
    text config with the user's overrides applied; ``device_name`` is the current platform's, one of :data:`WORKERS`.

    Raises:
        FactorError: when ``max_model_len`` exceeds the ladder's end.
        UnsupportedError: when the user chose their own scheduler or worker class.
    """
    for field in ("scheduler_cls", "worker_cls"):
        chosen = getattr(engine_args, field)
        if chosen not in (None, "auto") and not str(chosen).startswith("ropeswitch.model_patches."):
            raise UnsupportedError(f"{field}: {chosen!r} cannot be combined with a factor ladder, which brings its own")
    fields = overrides(hf_config, settings)
    engine_args.hf_overrides = with_overrides(engine_args.hf_overrides or {}, hf_config, fields)
    check_length(engine_args.max_model_len, settings.ladder)
    if engine_args.max_model_len is None:
        engine_args.max_model_len = settings.ladder.max_length
    engine_args.scheduler_cls = SCHEDULER
    engine_args.worker_cls = WORKERS[device_name]
    connectors.attach(engine_args.kv_transfer_config)
    engine_args.additional_config = dict(engine_args.additional_config or {}) | {KEY: settings.to_json()}
    parts.call("attach", settings.parts, engine_args, settings)
