"""The policy ``reserve``: Hugging Face with the set of prompt and output limit throughout, and no recomputation."""

from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from ropeswitch.factors.factor_set import FactorLadder
from tests.exactness.batches import SMALL, Start
from tests.exactness.engines import greedy, preemptions, prompts, run, scheduler_of
from tests.exactness.reference import Reference
from tests.exactness.test_ladders import ladder
from tests.exactness.test_plugin import found, run_engine
from tests.exactness.test_speculation import speculate

LADDER = ladder(16)
TOKENS = 24
# With 24 tokens more: within the first set and at its end, one past it, in the next sets and at their ends, and in the last.
LENGTHS = [5, 8, 9, 20, 31, 33, 40, 41, 60, 64, 72, 73, 96, 200]


def references(folder: Path, ladder: FactorLadder) -> dict[str | None, Reference]:
    """For each set, the model with that one forced; under None the model that follows the length."""
    by_length = Reference.load(folder, ladder)
    forced = {name: Reference(by_length.model, ladder, name) for name in ladder.names}
    return {None: by_length, **forced}


def asking(policy: str | None, max_tokens: int = TOKENS) -> SamplingParams:
    return greedy(max_tokens, extra_args=None if policy is None else {"rope_ladder_policy": policy})


def reserved(length: int) -> str:
    return LADDER.names[LADDER.index_for(length + TOKENS)]


def check_each(
    expected: dict[str | None, Reference], token_lists: list[list[int]], policies: list[str], answers: list[Any]
) -> None:
    for prompt, policy, (tokens, log_probs) in zip(token_lists, policies, answers, strict=True):
        assert len(tokens) == TOKENS
        expected[reserved(len(prompt)) if policy == "reserve" else None].check(prompt, tokens, log_probs)


@pytest.mark.parametrize("default", ["length", "reserve"])
def test_reserve_beside_requests_that_go_by_length(start: Start, llama: Path, default: str) -> None:
    """One batch of both policies, each chosen by the server for one half and by the requests for the other."""
    llm, expected = start(llama, LADDER, policy=default), references(llama, LADDER)
    other = "length" if default == "reserve" else "reserve"
    preempted = preemptions(scheduler_of(llm))
    token_lists = prompts(LENGTHS) + prompts(LENGTHS, seed=2)
    asked = [None] * len(LENGTHS) + [other] * len(LENGTHS)
    outputs = run(llm, token_lists, [asking(policy) for policy in asked])
    check_each(expected, token_lists, [policy or default for policy in asked], outputs)
    # A preemption is a recomputation: of each that goes by length and outgrows its set, and of no other.
    crossing = [length for length in LENGTHS if LADDER.index_for(length) != LADDER.index_for(length + TOKENS - 1)]
    assert sorted(request.num_prompt_tokens for request in preempted) == crossing
    # Again from the prefix cache, and the other way round.
    policies = [other if policy is None else default for policy in asked]
    check_each(expected, token_lists, policies, run(llm, token_lists, [asking(policy) for policy in policies]))


def test_reserve_through_preemptions(start: Start, llama: Path) -> None:
    """A request that resumes is in the set that it started in."""
    llm = start(llama, LADDER, policy="reserve", **SMALL)
    preempted, expected = preemptions(scheduler_of(llm)), references(llama, LADDER)
    token_lists = prompts([33, 60, 61, 62, 63, 90, 91, 92])
    check_each(expected, token_lists, ["reserve"] * len(token_lists), run(llm, token_lists, asking(None)))
    assert preempted


@pytest.mark.full
def test_reserve_with_drafts(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # Texts that repeat, so that there are drafts.
    token_lists = [
        (prompt * 20)[:length] for prompt, length in zip(prompts([6] * 6), [8, 9, 40, 41, 72, 73], strict=True)
    ]
    outputs, _ = speculate(token_lists, asking(None), llama, LADDER, policy="reserve")
    check_each(references(llama, LADDER), token_lists, ["reserve"] * len(token_lists), outputs)


@pytest.mark.full
def test_the_plugin_tells_a_limit_from_none(llama: Path) -> None:
    """``vllm.LLM`` with the key: an explicit limit up to the end of the context reserves, and no limit goes by length."""
    expected, most = references(llama, LADDER), 80
    key = {"sets": LADDER.to_json(), "policy": "reserve", "parts": []}
    lengths = [20, 40, 60]
    cases: list[dict[str, Any]] = [
        {"max_tokens": 12},
        {"max_tokens": None},
        {"max_tokens": None, "extra_args": {"rope_ladder_policy": "reserve"}},
        {"max_tokens": most},
        {"max_tokens": 12, "extra_args": {"rope_ladder_policy": "length"}},
    ]
    values = found(run_engine(llama, key, lengths, cases=cases, max_model_len=most))
    assert values["refused"].startswith("vllm_xargs.rope_factor_set: unknown factor set 'nope'")
    for case, outputs in zip(cases, values["outputs"], strict=True):
        for prompt, (tokens, log_probs) in zip(prompts(lengths), outputs, strict=True):
            limit = case["max_tokens"]
            by_length = limit is None or case.get("extra_args") == {"rope_ladder_policy": "length"}
            end = most if limit is None else min(len(prompt) + limit, most)
            assert len(prompt) + len(tokens) == end
            set_name = None if by_length else LADDER.names[LADDER.index_for(end)]
            expected[set_name].check(prompt, tokens, log_probs)
