"""The switch's options as environment variables, for platforms that start vLLM with their own arguments.

Any of them turns the switch on, like the key in ``additional_config``, whose fields take precedence. Until a variable is
set, this module imports only the standard library, since vLLM loads it into stock engines too.
"""

import re
from collections.abc import Mapping
from typing import Any

# Each variable is named after a flag of `ropeswitch serve` and fills the same field of the key.
FIELDS = {
    "ROPESWITCH_LADDER": "ladder",
    "ROPESWITCH_FACTORS": "factors",
    "ROPESWITCH_NATIVE_WINDOW": "native_window",
    "ROPESWITCH_LADDER_POLICY": "policy",
    "ROPESWITCH_ROPE_ANGLES": "angles",
    "ROPESWITCH_LENGTH_AWARE_SCHEDULING": "length_aware",
    "ROPESWITCH_STEP_LATENCY_TARGET": "step_latency_target",
}
_PREFIX = "ROPESWITCH_"
# Read elsewhere: by the images' health check, by the channel for child processes' refusals, by releases.py, and by tests.
_OTHERS = re.compile(r"ROPESWITCH_(?:HEALTH_URL|REFUSAL_FILE|UNVERIFIED_VLLM|TEST_\w+)")
# Kubernetes sets these in every pod for a service of that name, such as ROPESWITCH_PORT_8000_TCP.
_SERVICE_LINK = re.compile(r"ROPESWITCH_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_\w+)?)")
# Fields of the key that name a ladder; the key may have only one.
SOURCES = ("ladder", "factors", "sets")


def given(environment: Mapping[str, str]) -> bool:
    """Return whether a variable turns the switch on; misspelled ones count, so that :func:`read` refuses them."""
    return any(environment[name] for name in _ours(environment))


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the key that the variables fill; an empty variable counts as unset.

    Raises:
        FactorError: for a value that cannot be parsed, naming the variable.
        UsageError: for an unknown variable, or two that name a ladder.
    """
    from ropeswitch.factors.errors import UsageError
    from ropeswitch.factors.quoted import quoted

    values = {name: environment[name] for name in _ours(environment) if environment[name]}
    if unknown := sorted(set(values) - set(FIELDS)):
        raise UsageError(f"{unknown[0]}: unknown variable; allowed: {', '.join(FIELDS)}")
    if (factors := values.get("ROPESWITCH_FACTORS")) and (ladder := values.get("ROPESWITCH_LADDER")):
        raise UsageError(
            f"ROPESWITCH_FACTORS: {quoted(factors)} and ROPESWITCH_LADDER {quoted(ladder)} both name a ladder; set one"
        )
    return {FIELDS[name]: _parsed(name, values[name]) for name in FIELDS if name in values}


def filled(key: Any, environment: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """Return a user's key with the fields that it omits taken from the variables, and the variable of each such field.

    Raises:
        FactorError, UsageError: as in :func:`read`.
    """
    variables = {field: name for name, field in FIELDS.items()}
    options = read(environment)
    if not isinstance(key, Mapping):
        return key, {}
    # Take only one source of the ladder, and a window only if a ladder is made for it.
    left_out = {*key, *(SOURCES if any(name in key for name in SOURCES) else ())}
    if "sets" in key or "factors" in key:
        left_out.add("native_window")
    taken = {field: value for field, value in options.items() if field not in left_out}
    return {**taken, **key}, {field: variables[field] for field in taken}


def _ours(environment: Mapping[str, str]) -> list[str]:
    return [
        name
        for name in environment
        if name.startswith(_PREFIX) and not _OTHERS.fullmatch(name) and not _SERVICE_LINK.fullmatch(name)
    ]


def _parsed(name: str, text: str) -> Any:
    from ropeswitch.factors.errors import FactorError, FieldError
    from ropeswitch.factors.ladders.choice import parse
    from ropeswitch.factors.numbers import positive
    from ropeswitch.factors.quoted import quoted
    from ropeswitch.factors.rules.lengths import parse_length
    from ropeswitch.model_patches.switch.config.settings import ANGLES, MOST_STEP_SECONDS, POLICIES

    field = FIELDS[name]
    if field == "ladder":
        try:
            parse(text)
        except FieldError as error:
            raise FactorError(error.worded({"ladder": name})) from error
    if field == "native_window":
        return parse_length(name, text)
    if field == "step_latency_target":
        allowed = f"a number of seconds above 0 and at most {MOST_STEP_SECONDS:g}"
        return positive(name, text, MOST_STEP_SECONDS, allowed)
    choices = {"policy": POLICIES, "angles": ANGLES, "length_aware": ("true", "false")}.get(field)
    if choices and text not in choices:
        raise FactorError(f"{name}: {quoted(text)} must be {' or '.join(choices)}")
    return text == "true" if field == "length_aware" else text
