"""The ``vllm.general_plugins`` entry point: turns the switch on for engines that have our key or environment variables.

vLLM runs it in every process, in ``EngineArgs.__post_init__``, before any config is built. It imports only the standard
library, so it loads wherever vLLM does. Without the key in ``additional_config`` and the environment variables in
``variables.py``, vLLM stays stock; with either, any failure aborts startup.
"""

import os
import sys
from collections.abc import Mapping
from functools import wraps
from typing import Any

from ropeswitch.model_patches.switch.config import variables
from ropeswitch.model_patches.switch.config.key import KEY


def turned_on(additional_config: Any) -> bool:
    return (isinstance(additional_config, Mapping) and KEY in additional_config) or variables.given(os.environ)


def register() -> None:
    """Have ``EngineArgs.create_engine_config`` apply the ladder to engines with the switch turned on."""
    try:
        from vllm.engine.arg_utils import EngineArgs

        upstream = EngineArgs.create_engine_config
    except (ImportError, AttributeError) as error:
        # Raising here would also stop stock engines, which do not use the switch.
        _refuse_key(error)
        return
    if getattr(upstream, "checks_for_ladder", False):
        return

    @wraps(upstream)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        if turned_on(self.additional_config):
            from ropeswitch.model_patches.switch.engine_args import configure_from_key

            configure_from_key(self)
        return upstream(self, *args, **kwargs)

    create_engine_config.checks_for_ladder = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config


def _refuse_key(reason: Exception) -> None:
    """Refuse every engine config with the switch turned on, in a vLLM without the engine arguments that we patch."""
    message = f"additional_config.{KEY}: this vLLM is unsupported: {reason}"
    try:
        from vllm.config import VllmConfig

        upstream = VllmConfig.__post_init__
    except (ImportError, AttributeError):
        print(f"ropeswitch: {message}; the key and the variables have no effect", file=sys.stderr)
        return

    def __post_init__(self: Any, *args: Any) -> None:
        if turned_on(self.additional_config):
            raise RuntimeError(message)
        upstream(self, *args)

    VllmConfig.__post_init__ = __post_init__
