"""Prompts on their way into the engine: the factor set of each is decided here, once, and noted in its request's context.

Every route reaches the engine through the engine client's ``generate`` and ``encode``. They are wrapped on the client
that the server was built with, as plain functions that decide the set when they are called; the generators they return
are upstream's own. ``patches.py`` records every method that is wrapped here.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.datastructures import State

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.settings import FORCED_SET
from ropeswitch.server import vllm_adapter
from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.front.queue_limits import Admission
from ropeswitch.server.prompt_set import PromptSet, asks_for_set, decide

FIELD = f"vllm_xargs.{FORCED_SET}"

# Handlers that give prompts to the engine only while the response is being sent, or in many steps, by their name in
# the app's state: the method that is called once a prompt, before the response starts, and its prompt argument.
_LATE = (
    ("openai_serving_responses", "_generate_with_builtin_tools", "engine_input"),
    ("openai_serving_chat", "beam_search", "prompt"),
    ("openai_serving_completion", "beam_search", "prompt"),
)


def watch(engine_client: Any, state: State, ladder: FactorLadder, admission: Admission) -> None:
    """Record the factor set of every prompt that the server gives to the engine, and refuse unknown sets and full queues.

    Args:
        engine_client: The server's ``vllm.engine.protocol.EngineClient``.
        state: The app's state, with vLLM's handlers in it.
        ladder: The ladder that the engine runs.
        admission: Lets prompts in.

    Raises:
        AttributeError: when a handler lacks its method.
    """
    length = vllm_adapter.prompt_length(engine_client.model_config)

    def record(prompt: Any, params: Any, request_id: str | None) -> None:
        if (num_tokens := length(prompt)) is None:
            return
        context = current.get()
        # A step of answering a prompt that was let in.
        step = context is not None and context.answering
        decision = _decide(ladder, num_tokens, params, context)
        if context is not None and request_id is not None:
            context.decided[request_id] = decision
        if not step:
            admission.admit(num_tokens, decision.length_class, _answers(params), request_id)
        elif request_id is not None:
            admission.follow(request_id)

    engine_client.generate = _recording(engine_client.generate, "sampling_params", record)
    engine_client.encode = _recording(engine_client.encode, "pooling_params", record)
    for handler_name, method, prompt_argument in _LATE:
        # Absent where the model does not generate; a handler that is there must have its method.
        if (handler := getattr(state, handler_name, None)) is not None:
            params_argument = "sampling_params" if prompt_argument == "engine_input" else "params"
            upstream = getattr(handler, method)
            setattr(handler, method, _late(upstream, prompt_argument, params_argument, record))


Record = Callable[[Any, Any, str | None], None]
Generator = Callable[..., AsyncGenerator[Any, None]]


def _recording(upstream: Generator, params_argument: str, record: Record) -> Generator:
    def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        prompt = args[0] if args else kwargs["prompt"]
        params = args[1] if len(args) > 1 else kwargs[params_argument]
        record(prompt, params, args[2] if len(args) > 2 else kwargs["request_id"])
        return upstream(*args, **kwargs)

    return call


def _late(upstream: Generator, prompt_argument: str, params_argument: str, record: Record) -> Generator:
    def call(**kwargs: Any) -> AsyncGenerator[Any, None]:
        # The steps to come have IDs of their own.
        record(kwargs[prompt_argument], kwargs[params_argument], None)
        return _completing(upstream(**kwargs))

    return call


async def _completing(generator: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Pass a generator on, and take no prompt of its own making for one of the request's."""
    if (context := current.get()) is not None:
        context.answering = True
    async with aclosing(generator) as results:
        async for result in results:
            yield result


def _answers(params: Any) -> int:
    """How many answers to a prompt its ``SamplingParams`` or ``BeamSearchParams`` ask for; pooling ones have one."""
    return int(getattr(params, "n", None) or getattr(params, "beam_width", None) or 1)


def _decide(ladder: FactorLadder, num_tokens: int, params: Any, context: RequestContext | None) -> PromptSet:
    """Decide a prompt's set, and note it in the request's context.

    Raises:
        vllm.exceptions.VLLMValidationError: answered with a 400, when the set that the request asks for is unknown, or
            cannot be had on its route, or the prompt is longer than the ladder.
    """
    try:
        decision = decide(ladder, num_tokens, params)
    except FactorError as error:
        message = str(error).removeprefix(f"{FIELD}: ")
        field = FIELD if asks_for_set(params) else "prompt"
        raise vllm_adapter.validation_error(f"{field}: {message}", field) from error
    if context is None or context.answering:
        return decision
    if decision.forced is None and context.asked is not None:
        raise vllm_adapter.validation_error(
            f"{FIELD}: {context.asked!r} cannot be had here: pooling, beam search and routes that do not read vllm_xargs "
            "choose the factor set by length alone",
            FIELD,
        )
    context.prompts.append(decision)
    return decision
