"""What a request's JSON body asks for about its prompts' factor sets and output, before its route validates it."""

from ropeswitch.model_patches.switch.config.settings import FORCED_SET, LADDER_POLICY
from ropeswitch.server.front.bodies.faults import Fault

# Fields of a body that limit the output tokens; ``sampling_params`` may have the first of them too.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _asked_value(body: object, field: str) -> object:
    """Return the value of a field of ``vllm_xargs`` in a request's JSON body, or None.

    The route's own validation checks its type.
    """
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    return values.get(field) if isinstance(values, dict) else None


def asked_set(body: object) -> object:
    """Return the value of ``vllm_xargs.rope_factor_set`` in a request's JSON body, or None."""
    return _asked_value(body, FORCED_SET)


def asked_policy(body: object) -> object:
    """Return the value of ``vllm_xargs.rope_ladder_policy`` in a request's JSON body, or None."""
    return _asked_value(body, LADDER_POLICY)


def unknown_key(body: object) -> Fault | None:
    """Return the first key of ``vllm_xargs`` that begins with ``rope`` and is not ours, or None."""
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    for key in values if isinstance(values, dict) else ():
        if key[:4].lower() == "rope" and key not in (FORCED_SET, LADDER_POLICY):
            return Fault(("vllm_xargs", key), f"unknown key; ropeswitch reads {FORCED_SET} and {LADDER_POLICY}")
    return None


def names_output_limit(body: object) -> bool:
    """Whether a request's JSON body limits its output tokens."""
    if not isinstance(body, dict):
        return False
    inner = body.get("sampling_params")
    return any(body.get(name) is not None for name in _LIMITS) or (
        isinstance(inner, dict) and inner.get(_LIMITS[0]) is not None
    )
