"""Patches the switch into an engine or worker process: the parts' checks first, then every replacement, once."""

import pkgutil
from collections.abc import Callable
from typing import Any

from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.models.unsupported import check_engine, is_qwen4
from ropeswitch.model_patches.switch.releases import in_release

_done: set[tuple[str, Any]] = set()


def replace(target: str, wrap: Callable[[Any], Any]) -> None:
    """Replace the upstream symbol at a dotted path with ``wrap(upstream)``; a callable is kept as ``__wrapped__``.

    A second call with the same arguments does nothing.

    Raises:
        AttributeError: when the installed vLLM has no such symbol.
    """
    if (target, wrap) in _done:
        return
    owner_path, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    upstream = getattr(owner, name)
    new = wrap(upstream)
    if callable(upstream):
        new.__wrapped__ = upstream
    setattr(owner, name, new)
    _done.add((target, wrap))


def patch_process(vllm_config: Any) -> RopeSettings:
    """Check and patch this process for an engine and return its settings; every engine core and worker calls it first.

    Raises:
        UnsupportedError: when the engine has no ladder, or uses a feature that would rotate wrongly.
        RegistryError: from the guard, when the installed vLLM is not the one that the patches were written for.
    """
    # Imported here because they load vLLM's models and runners, which importing this module should not.
    from ropeswitch.model_patches.switch.engine.initialize_model import TARGET as INITIALIZE_MODEL
    from ropeswitch.model_patches.switch.engine.initialize_model import check_loader, checking
    from ropeswitch.model_patches.switch.engine.process_inputs import LIMIT, keeping_length
    from ropeswitch.model_patches.switch.engine.rope_dict import LadderRopeDict
    from ropeswitch.model_patches.switch.rows.group_rows import COMPRESS, ROTATE, rotating_by_rows, telling_groups
    from ropeswitch.model_patches.switch.rows.position_readers import METHODS, reading_true_positions
    from ropeswitch.model_patches.switch.rows.softmax_scales import TARGETS, scaling_queries

    settings = check_engine(vllm_config)
    check_loader(vllm_config.load_config.load_format)
    if (draft := getattr(vllm_config.speculative_config, "draft_load_config", None)) is not None:
        check_loader(draft.load_format)
    parts.call("prepare", settings.parts, vllm_config)
    replace("vllm.model_executor.layers.rotary_embedding._ROPE_DICT", LadderRopeDict)
    replace(INITIALIZE_MODEL, checking)
    if in_release(LIMIT):
        replace(LIMIT, keeping_length)
    if is_qwen4(vllm_config):
        replace(COMPRESS, telling_groups)
        replace(ROTATE, rotating_by_rows)
    for owner, method in METHODS.items():
        replace(f"{owner}.{method}", reading_true_positions)
    if settings.ladder.scales_softmax:
        for target in TARGETS:
            replace(target, scaling_queries)
    return settings
