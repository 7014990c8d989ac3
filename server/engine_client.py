"""``vllm.v1.engine.async_llm.AsyncLLM``: subclassed to decide the factor set of each prompt, and to shut down in order.

Every route reaches the engine through the engine client's ``generate`` and ``encode``. A prompt's set is decided once, when
one of them is called, and recorded in the request's context; the generators that they return are upstream's. Two methods of
handlers are wrapped for the same purpose (:data:`LATE`).
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.datastructures import State

from ropeswitch.factors.errors import FieldError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.switch.config.settings import (
    FORCED_SET,
    LADDER_POLICY,
    PLACEMENT,
    RESERVE,
)
from ropeswitch.model_patches.switch.placement import FORCED_FIELD as FIELD
from ropeswitch.model_patches.switch.placement import (
    POLICY_FIELD,
    EngineLadder,
    Placement,
    asked_placement,
    extra_of,
    place,
    set_for,
    with_extra,
)
from ropeswitch.server import vllm_adapter
from ropeswitch.server.aliases import alias_set
from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.engine_watch import WATCH
from ropeswitch.server.front.queue_limits import Admission
from ropeswitch.server.in_place import become
from ropeswitch.server.ingest.faults import LARGE_NUMBER
from ropeswitch.server.structural_tag import bound_whitespace

# Handlers that pass prompts to the engine only while the response is being sent, or in many steps: the name in the app's
# state, the method that is called once per prompt before the response starts, and its prompt argument.
LATE = (
    ("openai_serving_responses", "_generate_with_builtin_tools", "engine_input"),
    ("openai_serving_chat", "beam_search", "prompt"),
    ("openai_serving_completion", "beam_search", "prompt"),
)


class Prompts:
    """Decides the factor set of every prompt on its way to the engine; refuses unknown sets, and prompts for a full queue.

    Args:
        ladder: The engine's ladder.
        admission: Admits prompts to the queue.
        length: Counts a prompt's tokens (:func:`~ropeswitch.server.vllm_adapter.prompt_length`).
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

    def note(self, prompt: Any, params: Any, request_id: str | None, search: str | None = None) -> Any:
        """Decide a prompt's set, and admit the prompt to the queue.

        Args:
            prompt: A prompt in any form that the engine client accepts.
            params: Its ``SamplingParams``, ``BeamSearchParams`` or ``PoolingParams``.
            request_id: The ID under which it goes to the engine; None if each of its steps gets a separate ID.
            search: The ID of the beam search that it starts, or None.

        Returns:
            The parameters for the engine, which carry the prompt's placement.

        Raises:
            vllm.exceptions.VLLMValidationError: answered with a 400; see :func:`_placed`.
            RefusedError: when its length class is full, or it is too long.
        """
        if (num_tokens := self._length(prompt)) is None:
            return params
        _check_numbers(params)
        context = current.get()
        alias = alias_set(params, context)
        # A step of a prompt that was already admitted.
        step = context is not None and context.answering
        limited = self._limits_output or context is None or context.limited
        salt = vllm_adapter.client_salt(prompt)
        placement = self._follow_search(num_tokens, salt, context, request_id)
        if placement is None:
            placement = _placed(self._ladder, num_tokens, params, context, alias, salt, limited=limited)
        if context is not None and search is not None:
            context.searches[search] = placement
        if not step:
            sets = self._ladder.sets
            length_class = set_for(sets, min(num_tokens, sets.max_length), None)
            self._admission.admit(num_tokens, length_class, _answers(params), request_id)
        elif request_id is not None:
            self._admission.follow(request_id)
        if self._bounds_whitespace and (outputs := getattr(params, "structured_outputs", None)) is not None:
            bound_whitespace(outputs)
        if request_id is None:
            return params
        # Only this process makes a Placement; a client's field of that name is none (process_inputs.py).
        return with_extra(params, {PLACEMENT: placement})

    def _follow_search(
        self, num_tokens: int, salt: str | None, context: RequestContext | None, request_id: str | None
    ) -> Placement | None:
        """Return the placement of a beam-search step that forces no set; None for other prompts.

        Each step is a request for one token, and would reserve a set for that token alone: it keeps the set that its search
        has reserved, or goes by length.
        """
        if context is None or request_id is None:
            return None
        # Upstream's ID of a step is that of the search and three more parts.
        search = context.searches.get(request_id.rsplit("-", 3)[0])
        if search is None or search.forced:
            return None
        return search if search.policy == RESERVE else place(self._ladder, num_tokens, client_salt=salt)


class RopeClient(vllm_adapter.AsyncLLM):
    """The engine client of an API server.

    Attributes:
        ropeswitch: Decides about every prompt on its way to the engine.
    """

    ropeswitch: Prompts

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        params = self.ropeswitch.note(prompt, sampling_params, request_id)
        return super().generate(prompt, params, request_id, *args, **kwargs)

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        params = self.ropeswitch.note(prompt, pooling_params, request_id)
        return super().encode(prompt, params, request_id, *args, **kwargs)

    def shutdown(self, timeout: float | None = None) -> None:
        WATCH.leave(self)
        super().shutdown(timeout=timeout)


def take_over(engine_client: Any, state: State, prompts: Prompts) -> None:
    """Send every prompt of a server through :class:`Prompts` from now on.

    Args:
        engine_client: The server's ``vllm.v1.engine.async_llm.AsyncLLM``.
        state: The app's state, with vLLM's handlers in it.
        prompts: The instance to use.

    Raises:
        AttributeError: when a handler lacks its method.
        TypeError: when the engine client is of another class.
    """
    become(engine_client, RopeClient)
    engine_client.ropeswitch = prompts
    for handler_name, method, prompt_argument in LATE:
        # None for models that do not generate; every other handler must have its method.
        if (handler := getattr(state, handler_name, None)) is not None:
            params_argument = "sampling_params" if prompt_argument == "engine_input" else "params"
            setattr(handler, method, _late(getattr(handler, method), prompt_argument, params_argument, prompts))


Generator = Callable[..., AsyncGenerator[Any, None]]


def _late(upstream: Generator, prompt_argument: str, params_argument: str, prompts: Prompts) -> Generator:
    def call(**kwargs: Any) -> AsyncGenerator[Any, None]:
        # The later steps have separate IDs.
        search = kwargs["request_id"] if params_argument == "params" else None
        prompts.note(kwargs[prompt_argument], kwargs[params_argument], None, search)
        return _completing(upstream(**kwargs))

    return call


async def _completing(generator: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield a generator's results; prompts that it makes from now on count as steps, not as the request's prompts."""
    if (context := current.get()) is not None:
        context.answering = True
    async with aclosing(generator) as results:
        async for result in results:
            yield result


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


def _answers(params: Any) -> int:
    """Return the number of answers that ``SamplingParams`` or ``BeamSearchParams`` ask for; 1 for ``PoolingParams``."""
    return int(getattr(params, "n", None) or getattr(params, "beam_width", None) or 1)


def _placed(
    ladder: EngineLadder,
    num_tokens: int,
    params: Any,
    context: RequestContext | None,
    alias: str | None,
    salt: str | None,
    *,
    limited: bool,
) -> Placement:
    """Place a prompt, and record the placement in the request's context.

    Args:
        ladder: The engine's ladder.
        num_tokens: The prompt's length.
        params: Its parameters.
        context: The request's context, or None.
        alias: The set that its model name asks for, or None.
        salt: The client's ``cache_salt``, or None.
        limited: Whether the request or the server limits the output; otherwise vLLM's handlers have set the limit to the
            rest of the context.

    Raises:
        vllm.exceptions.VLLMValidationError: answered with a 400, when the set that the request asks for is unknown, or
            is not supported on its route, or the prompt is longer than the ladder.
    """
    asked = extra_of(params)
    try:
        if alias is not None and (policy := asked.get(LADDER_POLICY)) is not None:
            raise FieldError(
                POLICY_FIELD,
                "{policy!r} cannot be combined with a model name that forces a set; leave one out",
                policy=policy,
            )
        limited = limited or num_tokens + (getattr(params, "max_tokens", None) or 0) != ladder.max_model_len
        placement = asked_placement(ladder, params, num_tokens, salt, limited=limited)
        if alias is not None:
            placement = place(ladder, num_tokens, forced=alias, client_salt=salt)
    except FactorError as error:
        # The ladder's own errors name no field: an unknown set, or a prompt that is too long.
        field = FIELD if asked.get(FORCED_SET) is not None else "prompt"
        field = error.field if isinstance(error, FieldError) else field
        message = error.reason if isinstance(error, FieldError) else str(error)
        raise vllm_adapter.validation_error(f"{field}: {message}", field) from error
    if context is None or context.answering:
        return placement
    if not placement.forced and context.asked is not None:
        raise vllm_adapter.validation_error(
            f"{FIELD}: {context.asked!r} is not supported here: pooling, beam search and routes that do not read vllm_xargs "
            "choose the factor set by length alone; leave it out, or name the set in the model: MODEL@SET",
            FIELD,
        )
    if context.asked_policy is not None and asked.get(LADDER_POLICY) is None:
        raise vllm_adapter.validation_error(
            f"{POLICY_FIELD}: {context.asked_policy!r} is not supported here: pooling, beam search and routes that do not "
            "read vllm_xargs go by the server's --ladder-policy; leave it out",
            POLICY_FIELD,
        )
    context.prompts.append(placement)
    return placement
