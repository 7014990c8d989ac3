"""Speculative decoding with n-gram drafts: every token is still the reference's, drafts accepted on both sides of the limit.

The engine has a process of its own: the drafter loads llvmlite, beside which vLLM cannot start a second engine
(its Triton dispatcher reads every module's attributes and stumbles over llvmlite's function wrappers).
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.exactness import checkpoints
from tests.exactness.acceptance import watch
from tests.exactness.engines import engine, greedy, prompts, run
from tests.exactness.preloaded import Context
from tests.exactness.reference import Reference

SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
LENGTHS = [20, 30, 40, 45, 50, 55, 60, 61, 62, 63, 64, 65, 100]
Said = list[tuple[list[int], list[float]]]


def speculate(folder: Path, **changes: Any) -> tuple[Said, set[int]]:
    """What the engine says to each prompt, and the factor sets where it accepted a draft; ``changes`` go to ``engine``."""
    llm = engine(folder, speculative_config=SPECULATIVE, **changes)
    found = watch(llm.llm_engine.engine_core.engine_core.scheduler)
    return run(llm, prompts(LENGTHS, vocabulary=16), greedy(50)), found.accepting_sets


def check_drafts(folder: Path, **changes: Any) -> None:
    """Run :func:`speculate` in a process of its own and compare with the reference."""
    with ProcessPoolExecutor(1, mp_context=Context()) as pool:
        answers, accepted = pool.submit(speculate, folder, **changes).result()
    reference = Reference.load(folder)
    for prompt, (tokens, log_probs) in zip(prompts(LENGTHS, vocabulary=16), answers, strict=True):
        reference.check(prompt, tokens, log_probs)
    assert accepted == {0, 1}


@pytest.mark.full
def test_ngram_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # With so few words a random model soon repeats itself, so that what it said before predicts what it says next.
    check_drafts(checkpoints.phi3(tmp_path, vocab_size=16))
