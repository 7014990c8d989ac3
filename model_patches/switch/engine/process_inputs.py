"""``vllm.v1.engine.input_processor.InputProcessor.process_inputs``: wrapped to place each request on the ladder.

replaces: the step that turns a prompt and its parameters into a message for the engine core.
why: the engine hashes a request's blocks when it unpacks the message, so the factor set must be chosen before. Only here is
    it known whether the user set an output limit, because upstream fills in the rest of the context.
what differs: the message carries the request's placement (``placement.py``) in ``cache_salt`` and ``extra_args``. An unknown
    ``vllm_xargs.rope_factor_set`` or ``rope_ladder_policy`` raises upstream's validation error: status 400 over HTTP.
limits: under ``ropeswitch serve``, prompts come with the placement that its response headers show. Other HTTP servers, and
    all users of ``AsyncLLM``, fill in a missing limit before this step, so there a limit that ends exactly at the end of the
    context counts as none.
when it can go: when a plugin can set a request's cache salt.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.config.settings import FORCED_SET, PLACEMENT, settings_of
from ropeswitch.model_patches.switch.placement import EngineLadder, Placement, asked_placement, extra_of, with_extra

LIMIT = "vllm.config.vllm.VllmConfig._limit_max_model_len_to_draft"
Upstream = Callable[..., Any]
# The set that the current HTTP request's model name asks for (``MODEL@SET`` under plain ``vllm serve``), or None.
set_of_model_name: ContextVar[str | None] = ContextVar("ropeswitch_set_of_model_name", default=None)


def placing(upstream: Upstream) -> Upstream:
    """Wrap ``InputProcessor.process_inputs``, whose process may have several engines, stock ones too."""
    # Parsing the settings takes longer than the rest.
    engines: WeakKeyDictionary[Any, tuple[EngineLadder, bool] | None] = WeakKeyDictionary()

    def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self not in engines:
            settings, most = settings_of(self.vllm_config), self.vllm_config.model_config.max_model_len
            engines[self] = None if settings is None else (EngineLadder.of(settings, most), settings.fills_in_limits)
        if (engine := engines[self]) is None:
            return upstream(self, request_id, prompt, params, *args, **kwargs)
        ladder, filled_in = engine
        if (named := set_of_model_name.get()) is not None:
            params = with_extra(params, {FORCED_SET: named})
        placement = extra_of(params).get(PLACEMENT)
        if not isinstance(placement, Placement):
            # Refused before upstream tokenizes and hashes images.
            placed(ladder, params, 1, None, filled_in=filled_in)
        request = upstream(self, request_id, prompt, params, *args, **kwargs)
        if not isinstance(placement, Placement):
            # Upstream fills in a missing limit on its own copy of the parameters.
            values = request.prompt_token_ids if request.prompt_token_ids is not None else request.prompt_embeds
            placement = placed(ladder, params, len(values), request.cache_salt, filled_in=filled_in)
        request.cache_salt = placement.salt
        placement.attach(request)
        return request

    return process_inputs


def placed(ladder: EngineLadder, params: Any, num_tokens: int, salt: str | None, *, filled_in: bool) -> Placement:
    """Like :func:`~ropeswitch.model_patches.switch.placement.asked_placement`.

    Raises:
        VLLMValidationError: naming the field; over HTTP, a 400.
    """
    try:
        return asked_placement(ladder, params, num_tokens, salt, filled_in=filled_in)
    except FieldError as error:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(str(error), parameter=error.field) from error


def keeping_length(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap :data:`LIMIT`, by which a draft model's length ends the V2 runner's; ``check_tables`` looks at its angles."""

    def limit(self: Any) -> None:
        if settings_of(self) is None:
            upstream(self)

    return limit
