"""``vllm.v1.engine.input_processor.InputProcessor.process_inputs``: wrapped to check a request's set and policy.

replaces: the step that turns a request's parameters into a message for the engine core.
why: the engine core can only drop a request for an unknown set, without a reason, and cannot see whether the user set an
    output limit, because upstream fills in the rest of the context.
what differs: ``vllm_xargs.rope_factor_set`` must name a set of the ladder and ``vllm_xargs.rope_ladder_policy`` a policy;
    otherwise upstream's validation error is raised, which is status 400 over HTTP. A request without an output limit uses
    the policy ``length``, regardless of the configured one.
limits: not used under ``ropeswitch serve``, whose server does the same (``server/engine_client.py``). Other HTTP servers,
    and all users of ``AsyncLLM``, fill in a missing limit before this step, so there a limit that ends exactly at the end
    of the context counts as none.
when it can go: when a plugin can validate a request's parameters.
"""

from collections.abc import Callable
from typing import Any

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import (
    ANSWER_LIMIT_FIELD,
    FORCED_SET,
    LADDER_POLICY,
    RESERVE,
    settings_of,
)
from ropeswitch.model_patches.switch.placement import answer_limit, asked_policy, forced_set, go_by_length

Upstream = Callable[..., Any]


def reading_sets(upstream: Upstream) -> Upstream:
    """Wrap ``InputProcessor.process_inputs`` for ``vllm.LLM``, where an output limit arrives as the user set it."""
    return _wrapped(upstream, filled_in=False)


def reading_filled_in_limits(upstream: Upstream) -> Upstream:
    """Like :func:`reading_sets`, for ``vllm.v1.engine.async_llm.AsyncLLM``, whose callers fill in a missing limit."""
    return _wrapped(upstream, filled_in=True)


def _wrapped(upstream: Upstream, *, filled_in: bool) -> Upstream:
    def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.vllm_config
        values = config.additional_config.get(KEY) if isinstance(config.additional_config, dict) else None
        # The process may also hold stock engines, and engines whose server checks requests against all their ladders.
        if values is None or parts.SERVER in values["parts"]:
            return upstream(self, request_id, prompt, params, *args, **kwargs)
        # Read first, because upstream may set `max_tokens` on the same object; pooling requests have none.
        unlimited = getattr(params, "max_tokens", 0) is None
        policy = _checked_policy(params, config) or values["policy"]
        reserves = policy == RESERVE and hasattr(params, "max_tokens")
        request = upstream(self, request_id, prompt, params, *args, **kwargs)
        if reserves and (unlimited or (filled_in and _ends_with_context(request, config))):
            go_by_length(request.sampling_params)
        return request

    return process_inputs


def _checked_policy(params: Any, vllm_config: Any) -> str | None:
    """Return the policy that a request chooses, or None.

    Raises:
        VLLMValidationError: for an unknown set or policy, a policy with a forced set, or an invalid output limit for the
            decode engine.
    """
    field = f"vllm_xargs.{FORCED_SET}"
    try:
        # Parsing the settings takes longer than the rest, so only requests that force a set do it.
        if (name := forced_set(params)) is not None and (settings := settings_of(vllm_config)) is not None:
            settings.ladder.index_of(name)
        field = ANSWER_LIMIT_FIELD
        if getattr(params, "max_tokens", None) is not None:
            answer_limit(params)
        field = f"vllm_xargs.{LADDER_POLICY}"
        return asked_policy(params)
    except FactorError as error:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(f"{field}: {str(error).removeprefix(f'{field}: ')}", parameter=field) from error


def _ends_with_context(request: Any, vllm_config: Any) -> bool:
    prompt = request.prompt_token_ids if request.prompt_token_ids is not None else request.prompt_embeds
    return bool(len(prompt) + request.sampling_params.max_tokens == vllm_config.model_config.max_model_len)
