"""Draft models in every mode of the engine: the tests of other modules, with a target that has a draft model."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from vllm import LLM

from tests.exactness.conftest import starting
from tests.exactness.draft_models import KINDS, Pair, TwoForwards
from tests.exactness.engines import greedy, prompts, run
from tests.exactness.test_modes import (
    check_batch,
    test_chunked_prefill,
    test_compiled,
    test_eager_mixed_batch_leaks_no_block,
    test_forced_sets,
    test_preemption,
    test_prefix_caching_off,
    test_streamed_steps_deliver_every_token_once_through_aborts,
)
from tests.exactness.test_prefix_cache import cached_tokens, test_cold_and_warm

DRAFTS = {"num_speculative_tokens": 3}
# A process of `test_runners_models.py` runs what is among the long tests elsewhere.
pytestmark = [] if "ROPESWITCH_TEST_ASYNC" in os.environ else [pytest.mark.full]


@pytest.fixture(scope="module", params=["draft_model", "eagle"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    # With errors: some drafts are accepted, others are not.
    return KINDS[request.param](tmp_path_factory.mktemp("drafts"), noise=0.05)


@pytest.fixture(scope="module")
def phi3(pair: Pair) -> Path:
    """Another model, which the imported tests are given for theirs."""
    return pair.target


@pytest.fixture(scope="module")
def phi3_reference(pair: Pair) -> TwoForwards:
    return TwoForwards.load(pair.reference)


@pytest.fixture
def start(pair: Pair) -> Iterator[Callable[..., LLM]]:
    """Starts engines with the draft model."""
    for start_engine in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0"):
        yield partial(start_engine, speculative_config=pair.speculative | DRAFTS)


@pytest.fixture
def start_processes(pair: Pair) -> Iterator[Callable[..., LLM]]:
    """As ``start``, in processes of their own."""
    for start_engine in starting(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_CPU_OMP_THREADS_BIND="nobind"):
        yield partial(start_engine, speculative_config=pair.speculative | DRAFTS)


def test_a_crossing_leaves_both_sets_cached(
    start: Callable[..., LLM], pair: Pair, phi3: Path, phi3_reference: TwoForwards
) -> None:
    """An EAGLE head computes the last cached block again, and one is all that the short set has of this prompt."""
    llm = start(phi3, enable_prefix_caching=True)
    (prompt,) = prompts([60], seed=13)
    tokens, log_probs = run(llm, [prompt], greedy(80))[0]
    phi3_reference.check(prompt, tokens, log_probs)
    assert cached_tokens(llm, prompt + tokens) == (96 if pair.speculative["method"] == "eagle" else 128)
    assert cached_tokens(llm, prompt) == (0 if pair.speculative["method"] == "eagle" else 32)


@pytest.mark.full
def test_tp2(start_processes: Callable[..., LLM], phi3: Path, phi3_reference: TwoForwards) -> None:
    """Twice, the second time with what the prefix cache has of it."""
    llm = start_processes(phi3, tensor_parallel_size=2, max_num_batched_tokens=96)
    check_batch(llm, phi3_reference)
    check_batch(llm, phi3_reference)
