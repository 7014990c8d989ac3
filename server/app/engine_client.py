"""``vllm.v1.engine.async_llm.AsyncLLM``: subclassed to place each prompt on the ladder, and to shut down in order.

Every route reaches the engine through ``generate`` and ``encode``. A prompt is placed when one of them is called, so a
response's headers can name its set before its first output; the generators that they return are upstream's, watched only if
a grammar constrains the output, or cached tokens are not shown.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from ropeswitch.model_patches.switch.config.settings import FORCED_SET, LADDER_POLICY, PLACEMENT, RESERVE
from ropeswitch.model_patches.switch.engine import patching
from ropeswitch.model_patches.switch.engine.process_inputs import placed
from ropeswitch.model_patches.switch.placement import EngineLadder, Placement, extra_of, shared_by, with_extra
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.app.life_cycle import LIFE
from ropeswitch.server.front.bodies.contents import LARGE_NUMBER
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.flags import DEFAULT_COST, CostLimits
from ropeswitch.server.front.limits.cost import GrammarTurns, prompt_excess
from ropeswitch.server.front.limits.keys import Turns
from ropeswitch.server.front.limits.queue_limits import Admission
from ropeswitch.server.front.refusal import shorten
from ropeswitch.server.metrics.outputs import WatchedOutputs


@dataclass(frozen=True)
class Prompts:
    """Places every prompt on its way to the engine; refuses unknown sets, and prompts for a full queue."""

    ladder: EngineLadder
    admission: Admission
    length: Callable[[Any], int | None]  # counts a prompt's tokens (`prompt_length`)
    limits_output: bool = False  # whether the server limits the output of requests without a limit
    by_key: bool = True  # whether only requests with the same API key share the prefix cache (--prefix-cache-scope key)
    shows_cached: bool = True  # whether answers may tell how much of a prompt the prefix cache had
    bounds_whitespace: bool = False  # in JSON (`disable_any_whitespace`)
    shared: Callable[[], bool] = lambda: True  # whether there may be several clients, which the engines serve in turn
    cost_limits: CostLimits = DEFAULT_COST  # of a request's grammars and log-probabilities

    def place(self, prompt: Any, params: Any, request_id: str, priority: int = 0) -> Any:
        """Place a prompt, and admit it to the queue; return the parameters for the engine, which carry the placement.

        Raises:
            vllm.exceptions.VLLMValidationError: answered with a 400: an unknown set or policy, one that the route does not
                support, a prompt longer than the ladder, or a number that the engine cannot be sent.
            RefusedError: when its length class is full, or it is too long, or its request costs too much.
        """
        if (num_tokens := self.length(prompt)) is None:
            return params
        _check_numbers(params, priority)
        context = current.get()
        if context is not None and context.asked.alias is not None:
            params = with_extra(params, {FORCED_SET: context.asked.alias.factor_set})
        # vLLM's handlers fill in a limit that neither the body nor the server names.
        filled_in = not (self.limits_output or context is None or context.asked.limited)
        client_salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
        salt = shared_by(context.key if context is not None and self.by_key else None, client_salt)
        placement = placed(self.ladder, params, num_tokens, salt, filled_in=filled_in)
        if context is not None and context.client and self.shared():
            placement = replace(placement, client=context.client[:8].hex())
        if context is None or not _is_later_step(context):
            if context is not None:
                _check_support(context, params, placement)
                if (refusal := prompt_excess(context, params, num_tokens, self.cost_limits)) is not None:
                    raise context.refuse(vllm_adapter.AdmissionError(refusal), num_tokens)
                context.entered.placements.append(placement)
            length_class = self.ladder.sets.index_for(min(num_tokens, self.ladder.sets.max_length))
            copies = int(getattr(params, "n", None) or 1) * (context.asked.beams or 1 if context is not None else 1)
            self.admission.admit(num_tokens, length_class, copies, request_id)
        if self.bounds_whitespace and (outputs := getattr(params, "structured_outputs", None)) is not None:
            _bound_whitespace(outputs)
        # Only this process makes a Placement; a client's field of that name is none (process_inputs.py).
        return with_extra(params, {PLACEMENT: placement})


class RopeClient(vllm_adapter.AsyncLLM):
    """The engine client of an API server."""

    prompts: Prompts
    turns: GrammarTurns

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entering = Turns()

    def waits(self, request_id: str) -> bool | None:
        """Whether any answer of a request still waits for its prompt to be computed; None if the ID is unknown."""
        # Read with get: it is a defaultdict, and indexing would add the key.
        internal = self.output_processor.external_req_ids.get(request_id)
        states = self.output_processor.request_states
        return any(states[each].is_prefilling for each in internal) if internal else None

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        params = self.prompts.place(prompt, sampling_params, request_id, kwargs.get("priority", 0))
        outputs = super().generate(prompt, params, request_id, *args, **kwargs)
        has_grammar = getattr(params, "structured_outputs", None) is not None
        # Without a KV connector, nothing but its grammar ends a request with an error.
        constrained = has_grammar and self.vllm_config.kv_transfer_config is None
        shows_cached = self.prompts.shows_cached
        return _watched(outputs, constrained, shows_cached) if constrained or not shows_cached else outputs

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        params = self.prompts.place(prompt, pooling_params, request_id, kwargs.get("priority", 0))
        return super().encode(prompt, params, request_id, *args, **kwargs)

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if (grammar := getattr(params, "structured_outputs", None)) is not None:
            await self.turns.wait(vars(grammar))
        if words := getattr(params, "bad_words", None):
            await self.turns.wait_words(words)
        # A client's list of prompts enters a few at a time, between those of other clients.
        await self._entering.wait(context.client if (context := current.get()) is not None else b"")
        try:
            return await super().add_request(request_id, prompt, params, *args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    def shutdown(self, timeout: float | None = None) -> None:
        LIFE.leave(self)
        super().shutdown(timeout=timeout)


def prompt_length(model_config: Any, prompt: Any) -> int | None:
    """Return the tokens of a prompt; None for a realtime session, whose length is unknown at its start."""
    if isinstance(prompt, AsyncGenerator):
        return None
    return int(vllm_adapter.extract_prompt_len(model_config, prompt))


def use_our_classes() -> None:
    """Have vLLM make a :class:`RopeClient` and a :class:`WatchedOutputs` in this process, by the names it looks up."""
    for target, replacement in _CLASSES.items():
        patching.replace(target, replacement)


# Made once: a second replacement by the same function does nothing.
_CLASSES: dict[str, Callable[[Any], Any]] = {
    "vllm.v1.engine.async_llm.AsyncLLM": lambda _: RopeClient,
    "vllm.v1.engine.async_llm.OutputProcessor": lambda _: WatchedOutputs,
}


def _check_numbers(params: Any, priority: int) -> None:
    """Refuse an integer of more than 64 bits, which the engine cannot be sent.

    pydantic reads numbers from strings too, and vLLM the priority from a header.
    """
    values = {name: getattr(params, name) for name in getattr(params, "__struct_fields__", ())} | {"priority": priority}
    if (detection := values.get("repetition_detection")) is not None:
        values |= {f"repetition_detection.{name}": value for name, value in vars(detection).items()}
    for name, value in values.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise vllm_adapter.validation_error(f"{name}: {LARGE_NUMBER}", name)


def _bound_whitespace(outputs: Any) -> None:
    """Allow at most one whitespace character in a row in the JSON of the tag in a request's ``StructuredOutputsParams``.

    A forced tool call is decoded under a structural tag, which vLLM's ``disable_any_whitespace`` leaves unlimited: a small
    model may fill its whole answer with whitespace. A bound in the tag is kept; vLLM refuses an invalid tag.
    """
    if outputs.structural_tag is None:
        return
    try:
        tag = json.loads(outputs.structural_tag)
        _bound_formats(tag)
    except (ValueError, RecursionError):
        return
    outputs.structural_tag = json.dumps(tag)


def _bound_formats(node: Any) -> None:
    """Bound every ``json_schema`` format in a tag; the schemas in them are the user's and stay unchanged."""
    if isinstance(node, dict) and node.get("type") == "json_schema":
        # vLLM writes null where it sets no bound; 1 is xgrammar's smallest.
        if node.get("max_whitespace_cnt") is None:
            node["max_whitespace_cnt"] = 1
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            _bound_formats(each)


async def _watched(
    outputs: AsyncGenerator[Any, None], constrained: bool, shows_cached: bool
) -> AsyncGenerator[Any, None]:
    """Yield a request's outputs; raise a 400 if the engine ends it because of its grammar.

    Some grammars pass vLLM's validation, but fail to compile, or reach a place where they allow no token. The Responses API
    reports the cached tokens of its outputs whatever vLLM's flag says, so without ``shows_cached`` they have none.
    """
    async with aclosing(outputs):
        async for each in outputs:
            if constrained and any(choice.finish_reason == "error" for choice in each.outputs):
                raise vllm_adapter.validation_error(
                    "structured_outputs: the engine cannot follow this grammar: it fails to compile, or allows no further "
                    "token (a $ref to itself, for example); use another schema, expression or grammar",
                    "structured_outputs",
                )
            if not shows_cached:
                each.num_cached_tokens = each.num_cache_creation_tokens = None
            yield each


def _is_later_step(context: RequestContext) -> bool:
    """Whether a prompt extends an earlier one of its answer: each beam search of a body, and each response, has a task."""
    if not context.asked.in_steps:
        return False
    task, answers = asyncio.current_task(), context.entered.answers
    later = task in answers
    answers.add(task)
    return later


def _check_support(context: RequestContext, params: Any, placement: Placement) -> None:
    """Refuse a set or policy that the body names, but its route does not pass on; and a beam search that reserves."""
    if context.asked.beams and placement.policy == RESERVE:
        # vLLM asks for each token in a request of its own, so no step has the answer's limit.
        raise vllm_adapter.validation_error(
            "use_beam_search: true is not supported with the ladder policy reserve; name a set in the model: MODEL@SET",
            "use_beam_search",
        )
    for field, value in ((FORCED_SET, context.asked.factor_set), (LADDER_POLICY, context.asked.policy)):
        if value is not None and extra_of(params).get(field) is None:
            name = f"vllm_xargs.{field}"
            raise vllm_adapter.validation_error(
                f"{name}: {value!r} is not supported here: pooling, beam search and routes that do not read vllm_xargs go "
                "by length and the server's policy; leave it out, or name the set in the model: MODEL@SET",
                name,
            )
