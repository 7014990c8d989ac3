"""Makes the ladder for a user's choice and a model's config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.errors import FactorError, FieldError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import LONGROPE_TYPES, ladder_from_config, rope_parameters
from ropeswitch.factors.ladders.choice import AUTO, FILE, MOST_SETS, NONE, Choice
from ropeswitch.factors.ladders.made import MadeLadder, Origin
from ropeswitch.factors.ladders.native import Native, Scaling, native_of
from ropeswitch.factors.rules.catalogue import Rule, rule
from ropeswitch.factors.rules.formulas import Factors, Options
from ropeswitch.factors.rules.lengths import length_name
from ropeswitch.factors.rules.make import AS_PUBLISHED, attention_scale, factors_of, targets_for

ORIGINAL, STATIC = "original", "static"
# The rule that each rope_type of a config corresponds to.
_RULES = {"yarn": "yarn", "llama3": "llama3", "linear": "pi", "dynamic": "dynamic-ntk", "ntk": "ntk"}


def choose(
    choice: Choice, config: Mapping[str, Any], max_model_len: int | None = None, native_window: int | None = None
) -> MadeLadder:
    """Make a ladder for a model's text config with a rotary base, by the parsed ``--ladder``.

    Lengths are in tokens, None where the user states none, as is a ``max_model_len`` of -1. A FactorError names the field.
    """
    longest = None if max_model_len in (None, -1) else max_model_len
    if choice.kind == FILE:
        _refuse_window(native_window, "a factor file")
        return from_file(str(choice.path))
    longrope = rope_parameters(config)["rope_type"] in LONGROPE_TYPES
    if longrope or (choice.kind == NONE and native_window is not None):
        _refuse_window(native_window, "LongRoPE factors" if longrope else "{ladder} none")
    if longrope:
        return _longrope(choice, config, longest)
    native = native_of(config, native_window)
    if choice.kind == NONE:
        return _static(native, longest)
    if native.scaling is not None and native.trained is None and choice.kind == AUTO:
        raise _undecided(config, native)
    if native.trained:
        _refuse_window(
            native_window,
            f"the {native.scaling.kind if native.scaling else ''} scaling that the model was trained with",
        )
        return _trained(choice, native, longest)
    return _extended(choice, native, longest, stated=native_window is not None)


def from_file(path: str) -> MadeLadder:
    """Load the ladder of a factor file."""
    loaded = file.load(path)
    origins = [Origin(None, f"factor file {Path(path).name}")] * len(loaded.ladder.sets)
    return MadeLadder(loaded.ladder, tuple(origins), f"file:{path}", loaded.theta)


def check_theta(made: MadeLadder, theta: float) -> None:
    """Refuse a factor file made for a rotary base other than ``theta``, the model's."""
    if made.theta not in (None, theta):
        path = made.name.removeprefix(f"{FILE}:")
        raise FactorError(
            f"rope_theta: factor file {path!r} was made for {made.theta}, but the model's rope_theta is {theta}"
        )


def from_sets(sets: Sequence[Mapping[str, Any]], where: str, origins: tuple[Origin, ...] = ()) -> MadeLadder:
    """Make a ladder of sets that the user listed in the setting ``where``."""
    ladder = FactorLadder.checked(sets)
    if len(origins) != len(ladder.sets):
        origins = (Origin(None, where),) * len(ladder.sets)
    return MadeLadder(ladder, origins, where)


def _refuse_window(native_window: int | None, reason: str) -> None:
    if native_window is not None:
        raise FieldError(
            "native_window", f"{{window}} cannot be combined with {reason}; leave it out", window=native_window
        )


def _longrope(choice: Choice, config: Mapping[str, Any], longest: int | None) -> MadeLadder:
    """Make the ladder of a LongRoPE config's two lists; ``none`` uses the one list that stock vLLM uses."""
    ladder = ladder_from_config(config)
    assert ladder is not None
    if choice.rule is not None:
        raise FieldError(
            "ladder",
            "{text!r} would replace the LongRoPE factors that the model was trained with; allowed: auto, none and file:PATH",
            text=choice.text,
        )
    sets = ladder.to_json()
    name = "auto, LongRoPE factors of the model's config"
    if choice.kind == NONE:
        # Like stock vLLM, which serves up to the original window unless the user asks for more.
        short_only = longest is None or longest <= ladder.sets[0].max_length
        sets, name = ([sets[0]] if short_only else [sets[-1]]), "none, one LongRoPE list for all lengths"
    origins = [Origin(None, f"{each['name']}_factor of the config") for each in sets]
    return MadeLadder(FactorLadder.checked(sets), tuple(origins), name)


def _static(native: Native, longest: int | None) -> MadeLadder:
    """Make one set for all lengths, as the config specifies."""
    _check_end(longest, native.end, "the model's config ends")
    if native.scaling is None:
        sets = [_set(ORIGINAL, native.end, (1.0,) * native.rope.pairs)]
        origin = Origin(1.0, f"no scaling in the config; {_end_source(native)}")
    else:
        scaling = native.scaling
        sets = [_scaled(STATIC, native.end, native, scaling, scaling.factor)]
        origin = Origin(scaling.factor, f"{scaling.kind} of the config, for every length")
    return MadeLadder(FactorLadder.checked(sets), (origin,), "none, as the config says", native.rope.theta)


def _trained(choice: Choice, native: Native, longest: int | None) -> MadeLadder:
    """Make a ladder whose first set is the scaling that the model was trained with, with larger YaRN ratios above it."""
    scaling = native.scaling
    assert scaling is not None
    if choice.rule is not None and not _same(choice.rule, scaling):
        raise FieldError(
            "ladder",
            "{text!r} would replace {kind}, which the model was trained with ({source}); allowed: auto, none and file:PATH",
            text=choice.text,
            kind=scaling.kind,
            source=native.trained_source,
        )
    lengths = choice.tokens(native.end) or _rungs(native.end, longest)
    if lengths and scaling.kind != "yarn":
        raise FieldError(
            "max_model_len",
            "{longest} exceeds {end}, the end of the {kind} scaling that the model was trained with, and no published rule "
            "extends it; use a shorter length, or a factor file ({ladder} file:PATH)",
            longest=lengths[-1],
            end=native.end,
            kind=scaling.kind,
        )
    sets = [_scaled(ORIGINAL, native.end, native, scaling, scaling.factor)]
    origins = [Origin(scaling.factor, f"{scaling.kind} of the config, kept: {native.trained_source}")]
    for length in lengths:
        ratio = length / native.rope.original_length
        sets.append(_scaled(length_name(length), length, native, scaling, ratio))
        origins.append(Origin(ratio, _formula(scaling.kind, length, native, scaling.describe_attention())))
    note = _longer("yarn") if scaling.kind == "yarn" and not lengths else ""
    return MadeLadder(FactorLadder.checked(sets), tuple(origins), choice.text, native.rope.theta, note)


def _extended(choice: Choice, native: Native, longest: int | None, *, stated: bool) -> MadeLadder:
    """Make a ladder of the unscaled native window, then a set for each length by the rule."""
    scaling, window = native.scaling, native.rope.original_length
    lengths = choice.tokens(window)
    if not lengths:
        if longest is None and scaling is not None:
            longest = native.end
        if longest is None and choice.rule is not None:
            raise FieldError(
                "ladder",
                "{text!r} needs lengths; give them, as in {kind}:4x, or set {max_model_len} TOKENS",
                text=choice.text,
                kind=choice.kind,
            )
        # Unless the user asks for a length, sequences stay unscaled up to the config's end, as in every other server.
        if longest is None and scaling is None and not stated:
            window = native.end
        lengths = _rungs(window, longest)
    else:
        _check_end(longest, lengths[-1], "{ladder} {text} ends", text=choice.text)
    # The softmax scale of the config's scaling applies neither to unscaled sets nor to those of another rule.
    plain = None if scaling is None or scaling.softmax_slope is None else 1.0
    sets = [_set(ORIGINAL, window, (1.0,) * native.rope.pairs, softmax_scale=plain)]
    source = native.window_source if window == native.rope.original_length else _end_source(native)
    origins = [Origin(1.0, f"unscaled; window: {source}")]
    chosen = choice.rule if choice.rule is not None and not _same(choice.rule, scaling) else None
    for target in targets_for(native.rope, lengths):
        if chosen is None and scaling is not None:
            sets.append(_scaled(length_name(target.length), target.length, native, scaling, target.scale))
            origins.append(
                Origin(target.scale, _formula(scaling.kind, target.length, native, scaling.describe_attention()))
            )
            continue
        by = chosen or rule("yarn")
        factors = factors_of(by, native.rope, target, Options())
        attention = attention_scale(by, AS_PUBLISHED, target.scale, native.rope.original_length)
        sets.append(_set(length_name(target.length), target.length, factors, attention, plain))
        origins.append(Origin(target.scale, _formula(by.name, target.length, native, "")))
    name = choice.text if scaling is None or choice.kind != AUTO else f"auto, {scaling.kind} of the config"
    own = "yarn" if scaling is None else scaling.kind
    note = "" if lengths else _longer(own if choice.rule is None else choice.rule.name)
    return MadeLadder(FactorLadder.checked(sets), tuple(origins), name, native.rope.theta, note)


def _longer(kind: str) -> str:
    return f"--max-model-len TOKENS serves longer sequences, each scaled by {kind} for its own length"


def _same(by: Rule, scaling: Scaling | None) -> bool:
    """Whether a rule is the one that the config's scaling uses."""
    return scaling is not None and by.name == _RULES[scaling.kind]


def _rungs(window: int, longest: int | None) -> tuple[int, ...]:
    """Return the powers of two above the window up to ``longest``; only ``longest`` if it is at most twice the window."""
    if longest is None or longest <= window:
        return ()
    if longest <= 2 * window:
        return (longest,)
    lengths = [1 << power for power in range(window.bit_length(), (longest - 1).bit_length())]
    if len(lengths) + 2 > MOST_SETS:
        raise FieldError(
            "max_model_len",
            "{longest} needs {count} sets from the native window of {window} up; {most} sets reach {end} tokens. Use at "
            "most that, or give fewer lengths, such as {ladder} yarn:64x,4096x",
            longest=longest,
            count=len(lengths) + 2,
            window=window,
            most=MOST_SETS,
            end=1 << (window.bit_length() + MOST_SETS - 2),
        )
    return (*lengths, longest)


def check_length(longest: int | None, ladder: FactorLadder) -> None:
    """Refuse sequences of ``longest`` tokens if a ladder ends before that; None and -1 (auto) stand for its end."""
    if longest is not None and longest > ladder.max_length:
        raise FieldError(
            "max_model_len",
            "{longest} exceeds {end}, where the last factor set, {name!r}, ends; use at most {end}, or a factor file with a "
            "longer set ({factors} FILE)",
            longest=longest,
            end=ladder.max_length,
            name=ladder.names[-1],
        )


def _check_end(longest: int | None, end: int, where: str, **values: object) -> None:
    if longest is not None and longest > end:
        reason = "{longest} exceeds {end}, where " + where + "; use at most {end}"
        raise FieldError("max_model_len", reason, longest=longest, end=end, **values)


def _undecided(config: Mapping[str, Any], native: Native) -> FieldError:
    assert native.scaling is not None
    kind = native.scaling.kind
    return FieldError(
        "ladder",
        "the config scales by {kind} x{factor:g}, but it is unknown whether {model!r} was trained with it. If it was, use "
        "{ladder} none, which scales every length. If it was added for long texts, leave sequences of up to {window} tokens "
        "unscaled: {ladder} {rule}",
        kind=kind,
        factor=native.scaling.factor,
        model=config.get("model_type"),
        window=native.rope.original_length,
        rule=_RULES[kind],
    )


def _set(
    name: str, length: int, factors: Factors, scale: float = 1.0, softmax_scale: float | None = None
) -> dict[str, Any]:
    values = {"name": name, "max_length": length, "factors": factors, "scale": scale}
    return values if softmax_scale is None else values | {"softmax_scale": softmax_scale}


def _scaled(name: str, length: int, native: Native, scaling: Scaling, ratio: float) -> dict[str, Any]:
    return _set(name, length, scaling.factors(native.rope, ratio), scaling.attention(ratio), scaling.softmax(ratio))


def _formula(kind: str, length: int, native: Native, attention: str) -> str:
    return f"{kind}, factor {length:,} / {native.rope.original_length:,}{'; ' + attention if attention else ''}"


def _end_source(native: Native) -> str:
    return "max_position_embeddings of the config" if native.scaling is None else f"{native.scaling.kind} of the config"
