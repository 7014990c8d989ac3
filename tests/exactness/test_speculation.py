"""Speculative decoding with n-gram drafts: every token is still the reference's, drafts accepted on both sides of the limit.

The engine has a process of its own: the drafter loads llvmlite, beside which vLLM cannot start a second engine
(its Triton dispatcher reads every module's attributes and stumbles over llvmlite's function wrappers).
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from tests.exactness import checkpoints
from tests.exactness.acceptance import watch
from tests.exactness.engines import engine, greedy, prompts, run, scheduler_of
from tests.exactness.preloaded import Context
from tests.exactness.reference import Reference

SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
LENGTHS = [20, 30, 40, 45, 50, 55, 60, 61, 62, 63, 64, 65, 100]
Said = list[tuple[list[int], list[float]]]


def _speculate(
    token_lists: list[list[int]], params: SamplingParams, *args: Any, **changes: Any
) -> tuple[Said, set[int]]:
    llm = engine(*args, speculative_config=SPECULATIVE, **changes)
    found = watch(scheduler_of(llm))
    return run(llm, token_lists, params), found.accepting_sets


def speculate(*args: Any, **changes: Any) -> tuple[Said, set[int]]:
    """What an engine says to prompts, and the factor sets where it accepted a draft.

    Takes the prompts, their parameters, and what :func:`~tests.exactness.engines.engine` takes.
    """
    with ProcessPoolExecutor(1, mp_context=Context()) as pool:
        return pool.submit(_speculate, *args, **changes).result()


def check_drafts(folder: Path, **changes: Any) -> None:
    token_lists, reference = prompts(LENGTHS, vocabulary=16), Reference.load(folder)
    answers, accepted = speculate(token_lists, greedy(50), folder, **changes)
    for prompt, (tokens, log_probs) in zip(token_lists, answers, strict=True):
        reference.check(prompt, tokens, log_probs)
    assert accepted == {0, 1}


@pytest.mark.full
def test_ngram_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # With so few words a random model soon repeats itself, so that what it said before predicts what it says next.
    check_drafts(checkpoints.phi3(tmp_path, vocab_size=16))
