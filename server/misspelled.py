"""Refuses keys of ``vllm_xargs`` that nothing reads, and misspelled roles of messages: vLLM accepts any of both."""

import difflib
import os
from importlib.metadata import entry_points
from typing import Any

from ropeswitch.model_patches.switch.settings import FORCED_SET, LADDER_POLICY
from ropeswitch.server.plugin_names import VARIABLE

_XARGS = "vllm_xargs"
_OURS = (FORCED_SET, LADDER_POLICY)
# Keys that vLLM itself reads there.
_VLLMS = frozenset({"session_id", "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"})
_PREFIX = "rope"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Similarity, as ``difflib`` measures it, from which a word is taken for a misspelled one.
_SIMILAR = 0.75


def others_read_xargs(vllm_config: Any) -> bool:
    """Whether a logits processor, plugin, connector or worker of somebody else may read ``vllm_xargs``.

    Args:
        vllm_config: The engine's ``vllm.config.VllmConfig``.
    """
    loaded = os.environ.get(VARIABLE, "").split(",")
    plugins = [
        each
        for each in entry_points(group="vllm.general_plugins")
        if each.name in loaded and not each.value.startswith(("vllm.", "ropeswitch."))
    ]
    return bool(
        plugins
        or entry_points(group="vllm.logits_processors")
        or vllm_config.model_config.logits_processors
        or vllm_config.kv_transfer_config is not None
        or vllm_config.ec_transfer_config is not None
        or vllm_config.parallel_config.worker_extension_cls
        or vllm_config.model_config.is_diffusion
    )


def misspelled(body: object, *, others: bool) -> list[dict[str, Any]]:
    """The first unknown key or role of a body, as ``pydantic.ValidationError.errors``; empty where there is none.

    Args:
        body: A request's JSON values; the route's own validation checks their types.
        others: Whether others may read keys of their own in ``vllm_xargs``: then only keys like ours are refused.
    """
    if not isinstance(body, dict):
        return []
    values, messages = body.get(_XARGS), body.get("messages")
    for key in values if isinstance(values, dict) else ():
        if key in _OURS or key in _VLLMS:
            continue
        if not others or key.lower().startswith(_PREFIX) or difflib.get_close_matches(key.lower(), _OURS, 1, _SIMILAR):
            said = f"unknown key; ropeswitch reads {' and '.join(_OURS)}. Correct its name, or leave it out"
            return [{"type": "unknown_key", "loc": (_XARGS, key), "msg": said}]
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        role = message.get("role") if isinstance(message, dict) else None
        if role in _ROLES or not isinstance(role, str):
            continue
        # Models may have roles of their own.
        if meant := difflib.get_close_matches(role.lower(), _ROLES, 1, _SIMILAR):
            said = f"unknown role; {meant[0]!r} may be meant. Roles are {', '.join(_ROLES)}, or the model's own"
            return [{"type": "unknown_role", "loc": ("messages", index, "role"), "msg": said}]
    return []
