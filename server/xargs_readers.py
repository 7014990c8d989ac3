"""Checks whether other code reads ``vllm_xargs``; if none does, unknown keys in it are refused (``body_errors.py``)."""

import os
from importlib.metadata import entry_points
from typing import Any

from ropeswitch.server.plugin_names import VARIABLE


def others_read_xargs(vllm_config: Any) -> bool:
    """Whether a third-party logits processor, plugin, connector or worker may read ``vllm_xargs``.

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
