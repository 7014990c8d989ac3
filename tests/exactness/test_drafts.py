"""Draft models of every kind: each token is still the reference's, and the target accepts drafts in both sets."""

import os
from pathlib import Path
from typing import Any, get_args

import pytest
from vllm import LLM
from vllm.config.speculative import SpeculativeMethod

from tests.exactness.acceptance import watch
from tests.exactness.batches import Start, check, full_but
from tests.exactness.draft_models import KINDS, LONGEST, WINDOW, Pair
from tests.exactness.engines import greedy, prompts, scheduler_of
from tests.exactness.reference import Reference

# Short, at the limit and across it at every distance, and long.
LENGTHS = [20, 40, 50, 58, 60, 61, 62, 63, 64, 65, 100]
# Gone in 0.33.0. Before, the V2 runner has no Medusa, and vLLM does not schedule it asynchronously.
NO_MEDUSA = "medusa" not in get_args(SpeculativeMethod) or "1" in (
    os.environ.get("VLLM_USE_V2_MODEL_RUNNER"),
    os.environ.get("ROPESWITCH_TEST_ASYNC"),
)
INTERPRETED = "ROPESWITCH_TEST_ASYNC" in os.environ
SERVED = [kind for kind in KINDS if not (NO_MEDUSA and kind == "medusa")]


def served(start: Start, pair: Pair, **changes: Any) -> LLM:
    return start(pair.target, speculative_config=pair.speculative | {"num_speculative_tokens": 3}, **changes)


@pytest.mark.parametrize("kind", full_but(SERVED if INTERPRETED else ["eagle"], SERVED))
def test_every_token_is_the_targets(start: Start, tmp_path: Path, kind: str) -> None:
    # Of few words, heads that know nothing hit one now and then.
    vocabulary = 16 if kind == "medusa" else 384
    pair = KINDS[kind](tmp_path, vocab_size=vocabulary)
    llm = served(start, pair)
    found = watch(scheduler_of(llm))
    reference = Reference.load(pair.reference)
    token_lists = prompts(LENGTHS, vocabulary=vocabulary)
    check(llm, reference, token_lists, greedy(40))
    for count in (found.by_set[0], found.by_set[1], found.after_switch):
        assert count.accepted
        assert count.share > pair.accepted, (found.by_set, found.after_switch)
    # A request's keys, drafts with them, are of one set: none is computed beyond its end.
    assert found.longest[0] == WINDOW


@pytest.mark.full
@pytest.mark.parametrize("kind", ["draft_model", "eagle"])
def test_up_to_the_last_position(start: Start, tmp_path: Path, kind: str) -> None:
    """Drafts go on where the checkpoint's own window ends, and stop where the engine's does."""
    pair = KINDS[kind](tmp_path)
    llm = served(start, pair)
    found = watch(scheduler_of(llm))
    reference = Reference.load(pair.reference)
    token_lists = prompts([LONGEST - 30, LONGEST - 9, 20])
    check(llm, reference, token_lists, [greedy(30), greedy(9), greedy(30)])
    assert found.longest[1] == LONGEST - 1
    assert found.by_set[1].share > 0.3
