"""Native KV offloading: blocks in the host tier are found by the factor set that rotated them, and never by another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM

from tests.exactness.engines import greedy, prompts
from tests.exactness.host_tier import Tally, host_tier
from tests.exactness.reference import Reference
from tests.exactness.test_modes import LENGTHS, check_batch

Start = Callable[..., LLM]


@pytest.fixture
def offloading(start: Start, phi3: Path) -> Callable[..., tuple[LLM, Tally]]:
    def begin(**changes: Any) -> tuple[LLM, Tally]:
        arguments = {"enable_prefix_caching": True, "kv_transfer_config": host_tier(), "disable_log_stats": False}
        llm = start(phi3, **arguments | changes)
        return llm, Tally.of(llm)

    return begin


def ask(llm: LLM, reference: Reference, prompt: list[int], count: int) -> int:
    """Check an answer after the engine's own prefix cache is emptied; returns the prompt's tokens that were supplied."""
    assert llm.reset_prefix_cache()
    output = llm.generate([{"prompt_token_ids": prompt}], greedy(count), use_tqdm=False)[0]
    tokens = list(output.outputs[0].token_ids)
    scores = [entry[token].logprob for token, entry in zip(tokens, output.outputs[0].logprobs, strict=True)]
    assert len(tokens) == count
    reference.check(prompt, tokens, scores)
    return output.num_cached_tokens or 0


def test_hits_in_each_set_and_none_across(offloading: Any, phi3_reference: Reference) -> None:
    llm, tally = offloading()
    for seed in (11, 12):
        (long,) = prompts([160], seed=seed)
        short = long[:64]
        for prompt in (short, long) if seed == 11 else (long, short):
            assert ask(llm, phi3_reference, prompt, 1) == 0
        tally.take()
        # The last token is computed for its logits all the same.
        assert [ask(llm, phi3_reference, prompt, 1) for prompt in (long, short)] == [160, 64]
        assert tally.take() == (2, 160 + 64, 0)
    # A request that switches leaves its prompt in the first set, and finds the second set's in the tier.
    (long,) = prompts([160], seed=13)
    ask(llm, phi3_reference, long, 1)
    tally.take()
    assert ask(llm, phi3_reference, long[:60], 30) == 0
    computed, external, resumed = tally.take()
    assert (external, resumed) == (0, 32) and computed == 60 + 29 + 64 - 32
    assert ask(llm, phi3_reference, long[:60], 30) == 32


def test_mixed_batch(offloading: Any, phi3_reference: Reference) -> None:
    """Every request crosses beside others, stores and loads in flight; the second round's hits come from the tier."""
    llm, tally = offloading()
    check_batch(llm, phi3_reference)
    first = tally.take()
    assert first[1] == 0
    for _ in range(2):
        assert llm.reset_prefix_cache()
        check_batch(llm, phi3_reference)
        computed, external, _ = tally.take()
        assert external == sum(length // 32 * 32 for length in LENGTHS)
        assert computed < first[0] - external
