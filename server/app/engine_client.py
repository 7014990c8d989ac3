"""``vllm.v1.engine.async_llm.AsyncLLM``: subclassed to place each prompt on the ladder, and to shut down in order.

Every route reaches the engine through the engine client's ``generate`` and ``encode``. A prompt is placed once, when one of
them is called, so a response's headers can name its set before its first output; the generators that they return are
upstream's.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from ropeswitch.factors.errors import FieldError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.switch.config.settings import (
    FORCED_SET,
    LADDER_POLICY,
    PLACEMENT,
)
from ropeswitch.model_patches.switch.placement import FORCED_FIELD as FIELD
from ropeswitch.model_patches.switch.placement import (
    POLICY_FIELD,
    EngineLadder,
    Placement,
    asked_placement,
    extra_of,
    set_for,
    with_extra,
)
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.app.engine_watch import WATCH
from ropeswitch.server.app.structural_tag import bound_whitespace
from ropeswitch.server.front.bodies.contents import LARGE_NUMBER
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.limits.queue_limits import Admission


class Prompts:
    """Places every prompt on its way to the engine; refuses unknown sets, and prompts for a full queue.

    Args:
        ladder: The engine's ladder.
        admission: Admits prompts to the queue.
        length: Counts a prompt's tokens (:func:`~ropeswitch.server.app.vllm_adapter.prompt_length`).
        limits_output: Whether the server limits the output of requests without a limit.
        bounds_whitespace: Whether to bound the whitespace in JSON (``disable_any_whitespace``).
    """

    def __init__(
        self,
        ladder: EngineLadder,
        admission: Admission,
        length: Callable[[Any], int | None],
        *,
        limits_output: bool = False,
        bounds_whitespace: bool = False,
    ) -> None:
        self._ladder = ladder
        self._admission = admission
        self._length = length
        self._limits_output = limits_output
        self._bounds_whitespace = bounds_whitespace

    def place(self, prompt: Any, params: Any, request_id: str) -> Any:
        """Place a prompt on the ladder, and admit it to the queue.

        Args:
            prompt: A prompt in any form that the engine client accepts.
            params: Its ``SamplingParams`` or ``PoolingParams``.
            request_id: The ID under which it goes to the engine.

        Returns:
            The parameters for the engine, which carry the placement.

        Raises:
            vllm.exceptions.VLLMValidationError: answered with a 400; see :func:`_placed`.
            RefusedError: when its length class is full, or it is too long.
        """
        if (num_tokens := self._length(prompt)) is None:
            return params
        _check_numbers(params)
        context = current.get()
        limited = self._limits_output or context is None or context.asked.limited
        salt = vllm_adapter.client_salt(prompt)
        step = context is not None and context.asked.in_steps and bool(context.entered.placements)
        placement = _placed(self._ladder, num_tokens, params, context, salt, limited=limited, step=step)
        if not step:
            sets = self._ladder.sets
            length_class = set_for(sets, min(num_tokens, sets.max_length), None)
            self._admission.admit(num_tokens, length_class, int(getattr(params, "n", None) or 1), request_id)
        if self._bounds_whitespace and (outputs := getattr(params, "structured_outputs", None)) is not None:
            bound_whitespace(outputs)
        # Only this process makes a Placement; a client's field of that name is none (process_inputs.py).
        return with_extra(params, {PLACEMENT: placement})


class RopeClient(vllm_adapter.AsyncLLM):
    """The engine client of an API server.

    Attributes:
        prompts: Places every prompt on its way to the engine.
    """

    prompts: Prompts

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        params = self.prompts.place(prompt, sampling_params, request_id)
        return super().generate(prompt, params, request_id, *args, **kwargs)

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        params = self.prompts.place(prompt, pooling_params, request_id)
        return super().encode(prompt, params, request_id, *args, **kwargs)

    def shutdown(self, timeout: float | None = None) -> None:
        WATCH.leave(self)
        super().shutdown(timeout=timeout)


def _check_numbers(params: Any) -> None:
    """Check that the engine can be sent a prompt's ``SamplingParams``; pydantic also reads numbers from strings.

    Raises:
        vllm.exceptions.VLLMValidationError: answered with a 400, for an integer of more than 64 bits.
    """
    values = {name: getattr(params, name) for name in getattr(params, "__struct_fields__", ())}
    if (detection := values.get("repetition_detection")) is not None:
        values |= {f"repetition_detection.{name}": value for name, value in vars(detection).items()}
    for name, value in values.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise vllm_adapter.validation_error(f"{name}: {LARGE_NUMBER}", name)


def _placed(
    ladder: EngineLadder,
    num_tokens: int,
    params: Any,
    context: RequestContext | None,
    salt: str | None,
    *,
    limited: bool,
    step: bool,
) -> Placement:
    """Place a prompt, and record the placement in the request's context.

    Args:
        ladder: The engine's ladder.
        num_tokens: The prompt's length.
        params: Its parameters.
        context: The request's context, or None.
        salt: The client's ``cache_salt``, or None.
        limited: Whether the request or the server limits the output; otherwise vLLM's handlers have set the limit to the
            rest of the context.
        step: Whether the prompt is a step of an answer, such as one of a beam search.

    Raises:
        vllm.exceptions.VLLMValidationError: answered with a 400, when the set that the request asks for is unknown, or
            is not supported on its route, or the prompt is longer than the ladder.
    """
    asked = extra_of(params)
    alias = context.asked.alias.factor_set if context is not None and context.asked.alias is not None else None
    try:
        if alias is not None and (policy := asked.get(LADDER_POLICY)) is not None:
            raise FieldError(
                POLICY_FIELD,
                "{policy!r} cannot be combined with a model name that forces a set; leave one out",
                policy=policy,
            )
        limited = limited or num_tokens + (getattr(params, "max_tokens", None) or 0) != ladder.max_model_len
        placement = asked_placement(ladder, params, num_tokens, salt, limited=limited, forced=alias)
    except FactorError as error:
        # The ladder's own errors name no field: an unknown set, or a prompt that is too long.
        field = FIELD if asked.get(FORCED_SET) is not None else "prompt"
        field = error.field if isinstance(error, FieldError) else field
        message = error.reason if isinstance(error, FieldError) else str(error)
        raise vllm_adapter.validation_error(f"{field}: {message}", field) from error
    if context is None or step:
        return placement
    if not placement.forced and context.asked.factor_set is not None:
        raise vllm_adapter.validation_error(
            f"{FIELD}: {context.asked.factor_set!r} is not supported here: pooling, beam search and routes that do not read "
            "vllm_xargs choose the factor set by length alone; leave it out, or name the set in the model: MODEL@SET",
            FIELD,
        )
    if context.asked.policy is not None and asked.get(LADDER_POLICY) is None:
        raise vllm_adapter.validation_error(
            f"{POLICY_FIELD}: {context.asked.policy!r} is not supported here: pooling, beam search and routes that do not "
            "read vllm_xargs go by the server's --ladder-policy; leave it out",
            POLICY_FIELD,
        )
    context.entered.placements.append(placement)
    return placement
