"""Latent attention in every mode that vLLM has for it on CPUs: the tests of other modules, on a DeepSeek V3.

There is no chunked prefill and no prefix cache in float32; ``test_latent_expanded.py`` has them on the same model.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm import LLM

from tests.exactness.latent_models import LATENT_PER_TOKEN, REFERENCE_KERNEL, TRAINED_SETS, starting_trained, trained
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_modes import (
    test_compiled,
    test_eager_mixed_batch_leaks_no_block,
    test_preemption,
    test_priority_scheduling,
    test_prompt_log_probabilities,
    test_several_choices,
    test_streamed_steps_deliver_every_token_once_through_aborts,
)
from tests.exactness.test_parallel import test_two_ranks

INTERPRETED = "ROPESWITCH_TEST_ASYNC" in os.environ
# A process of `test_runners_models.py` runs what is among the long tests elsewhere.
pytestmark = [] if INTERPRETED else [pytest.mark.full]

if INTERPRETED:
    from tests.exactness.runner_cases import (
        test_a_captured_graph_would_read_the_same_buffers,
        test_the_engine_is_the_one_that_was_asked_for,
    )

Start = Callable[..., LLM]


def start_latent(start: Start) -> Start:
    return starting_trained(start, LATENT_PER_TOKEN, **REFERENCE_KERNEL)


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek V3, which the imported tests are given for their Phi-3."""
    return trained(tmp_path_factory.mktemp("deepseek"))


@pytest.fixture(scope="module")
def phi3_reference(phi3: Path) -> StaticReference:
    return StaticReference.load(phi3, TRAINED_SETS)


@pytest.fixture
def start(start: Start) -> Start:
    return start_latent(start)


@pytest.fixture
def start_processes(start_processes: Start) -> Start:
    return start_latent(start_processes)
