"""One context for each HTTP request, and one decision for each prompt, carried in it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import State
from vllm import PoolingParams, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.server.context import RequestContext, current
from ropeswitch.server.engine_client import Prompts, take_over
from ropeswitch.server.front.refusal import RefusedError, listeners, prompt_too_long, too_many_at_once
from ropeswitch.server.prompt_set import PromptSet, decide

SERVER = Path(__file__).resolve().parents[2] / "server"
LADDER = FactorLadder.checked(
    [{"name": "a", "max_length": 8, "factors": [1.0, 2.0]}, {"name": "b", "max_length": 16, "factors": [1.5, 3.0]}]
)


def asking(name: str | None) -> SamplingParams:
    return SamplingParams(extra_args=None if name is None else {"rope_factor_set": name})


def test_a_prompt_is_decided_once_and_noted_for_header_queue_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted: list[Any] = []
    given_to_engine: list[Any] = []

    def upstream(self: AsyncLLM, *args: Any, **options: Any) -> None:
        given_to_engine.append((*args, options))

    for method in ("generate", "encode"):
        monkeypatch.setattr(AsyncLLM, method, upstream)
    client: Any = AsyncLLM.__new__(AsyncLLM)
    admission: Any = SimpleNamespace(admit=lambda *args: admitted.append(args))
    take_over(client, State(), Prompts(LADDER, admission, lambda prompt: len(prompt["prompt_token_ids"])))
    context = RequestContext()
    token = current.set(context)
    prompts = [{"prompt_token_ids": [1] * length} for length in (5, 9, 3)]
    client.generate(prompts[0], asking("b"), "r1")
    client.generate(prompts[1], asking(None), "r2", priority=3)
    client.encode(prompts[2], pooling := PoolingParams(), request_id="r3")
    current.reset(token)
    assert context.prompts == [PromptSet(1, 0, "b"), PromptSet(1, 1), PromptSet(0, 0)]
    assert context.decided == dict(zip(("r1", "r2", "r3"), context.prompts, strict=True))
    assert admitted == [(5, 0, 1, "r1"), (9, 1, 1, "r2"), (3, 0, 1, "r3")]
    assert given_to_engine[0][:-1] == (prompts[0], asking("b"), "r1")
    assert given_to_engine[1] == (prompts[1], asking(None), "r2", {"priority": 3})
    assert given_to_engine[2] == (prompts[2], pooling, "r3", {})


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
    listeners.append(lambda *rejection: counted.append(rejection))
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
