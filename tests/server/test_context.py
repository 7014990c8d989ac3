"""One context for each HTTP request, and one decision for each prompt, carried in it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import State
from vllm import SamplingParams

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.engine_prompts import watch
from ropeswitch.server.front.refusal import RefusedError, listeners, prompt_too_long, too_many_at_once
from ropeswitch.server.prompt_set import PromptSet, decide

SERVER = Path(__file__).resolve().parents[2] / "server"
LADDER = FactorLadder.checked(
    [{"name": "a", "max_length": 8, "factors": [1.0, 2.0]}, {"name": "b", "max_length": 16, "factors": [1.5, 3.0]}]
)


def asking(name: str | None) -> SamplingParams:
    return SamplingParams(extra_args=None if name is None else {"rope_factor_set": name})


def test_a_prompt_is_decided_once_and_noted_for_header_queue_and_metrics() -> None:
    admitted: list[Any] = []
    given_to_engine: list[Any] = []

    def upstream(*args: Any) -> None:
        given_to_engine.append(args)

    client = SimpleNamespace(generate=upstream, encode=None, model_config=SimpleNamespace(is_encoder_decoder=False))
    admission: Any = SimpleNamespace(admit=lambda *args: admitted.append(args))
    watch(client, State(), LADDER, admission)
    context = RequestContext()
    token = current.set(context)
    for name, length, params in (("r1", 5, asking("b")), ("r2", 9, asking(None))):
        client.generate({"prompt_token_ids": [1] * length}, params, name)
    current.reset(token)
    assert context.prompts == [PromptSet(1, 0, "b"), PromptSet(1, 1)]
    assert context.decided == {"r1": context.prompts[0], "r2": context.prompts[1]}
    assert admitted == [(5, 0, 1, "r1"), (9, 1, 1, "r2")]
    assert len(given_to_engine) == 2


@given(st.integers(1, 20), st.sampled_from([None, "a", "b"]), st.integers(0, 20))
def test_a_decision_follows_the_sequence_as_the_engine_does(length: int, forced: str | None, more: int) -> None:
    if forced is None and length > 16:
        with pytest.raises(FactorError):
            decide(LADDER, length, asking(None))
        return
    decision = decide(LADDER, length, asking(forced))
    expected = {"a": 0, "b": 1}[forced] if forced is not None else int(length > 8)
    assert (decision.index, decision.length_class) == (expected, int(length > 8))
    assert decision.index_at(LADDER, length + more) == (expected if forced is not None else int(length + more > 8))


def test_a_request_is_refused_and_counted_once() -> None:
    counted: list[Any] = []
    listeners.append(lambda *told: counted.append(told))
    context, first = RequestContext(), prompt_too_long(9, 8)
    assert context.refuse(RefusedError(first), 9).refusal is first
    context.refuse(RefusedError(too_many_at_once(1)))
    listeners.pop()
    assert counted == [("prompt_tokens", 9)]
    assert (context.refusal, context.refused_tokens) == (first, 9)


def test_no_other_module_keeps_the_state_of_a_request() -> None:
    """What is left is the span that is being made, of which the output handler knows the request."""
    keeping = {str(each.relative_to(SERVER)) for each in SERVER.rglob("*.py") if "= ContextVar(" in each.read_text()}
    assert keeping == {"context.py", "traces.py"}
