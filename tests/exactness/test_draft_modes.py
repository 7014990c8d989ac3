"""Draft models in every mode of the engine: the tests of other modules, with a target that has a draft model."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM

from tests.exactness.conftest import starting
from tests.exactness.draft_models import KINDS, Pair
from tests.exactness.reference import Reference
from tests.exactness.test_modes import (
    test_chunked_prefill,
    test_compiled,
    test_eager_mixed_batch_leaks_no_block,
    test_forced_sets,
    test_preemption,
    test_prefix_caching_off,
    test_streamed_steps_deliver_every_token_once_through_aborts,
)
from tests.exactness.test_prefix_cache import test_a_crossing_leaves_both_sets_cached, test_cold_and_warm

__all__ = [
    "test_a_crossing_leaves_both_sets_cached",
    "test_chunked_prefill",
    "test_cold_and_warm",
    "test_compiled",
    "test_eager_mixed_batch_leaks_no_block",
    "test_forced_sets",
    "test_preemption",
    "test_prefix_caching_off",
    "test_streamed_steps_deliver_every_token_once_through_aborts",
]

# A process that `test_runners.py` started runs what is among the long tests elsewhere.
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
def phi3_reference(pair: Pair) -> Reference:
    return Reference.load(pair.reference)


@pytest.fixture
def start(pair: Pair) -> Iterator[Callable[..., LLM]]:
    """Starts engines with the draft model."""
    for start_engine in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0"):

        def with_drafts(*args: Any, start_engine: Callable[..., LLM] = start_engine, **changes: Any) -> LLM:
            drafts = pair.speculative | {"num_speculative_tokens": 3}
            return start_engine(*args, speculative_config=drafts, **changes)

        yield with_drafts
