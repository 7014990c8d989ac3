"""``vllm.v1.engine.input_processor.InputProcessor._validate_params``: wrapped to refuse unknown factor sets.

replaces: the check of a request's parameters, in the process that takes requests.
why: the engine core can only drop a request whose set it does not know, without a reason.
what differs: ``vllm_xargs.rope_factor_set`` must name a set of the ladder, else upstream's validation
    error is raised, which is status 400 over HTTP.
limits: not under ``ropeswitch serve``, whose server checks it before (``server/engine_client.py``).
when it can go: when a plugin can validate a request's parameters.
"""

from collections.abc import Callable
from typing import Any

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.switch.request_set import forced_set
from ropeswitch.model_patches.switch.settings import FORCED_SET, settings_of


def checking_sets(upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``InputProcessor._validate_params``."""

    def _validate_params(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        checked = upstream(self, params, *args, **kwargs)
        field = f"vllm_xargs.{FORCED_SET}"
        try:
            if (name := forced_set(params)) is not None and (settings := settings_of(self.vllm_config)) is not None:
                settings.ladder.index_of(name)
        except FactorError as error:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(f"{field}: {str(error).removeprefix(f'{field}: ')}", parameter=field) from error
        return checked

    return _validate_params
