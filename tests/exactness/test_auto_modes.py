"""The automatic ladder in every mode of the engine: the tests of other modules, on a plain Phi-3 instead of LongRoPE's."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM

from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.parts import PARTS
from tests.exactness.auto_cases import AUTO, PLAIN, check_twice, yarn_sets
from tests.exactness.engines import greedy, prompts, run
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_auto_ladder import checkpoint
from tests.exactness.test_modes import (
    test_chunked_prefill,
    test_compiled,
    test_eager_mixed_batch_leaks_no_block,
    test_preemption,
    test_prefix_caching_off,
    test_priority_scheduling,
    test_prompt_log_probabilities,
    test_several_choices,
    test_streamed_steps_deliver_every_token_once_through_aborts,
)
from tests.exactness.test_parallel import test_two_ranks
from tests.exactness.test_prefix_cache import (
    test_a_crossing_leaves_both_sets_cached,
    test_a_users_salt_is_kept,
    test_cold_and_warm,
    test_sets_share_no_block,
)

# The longest that fits the small KV cache of the test of preemption.
LONGEST = 480
SETS = ("original", "128", "256", "480")
INTERPRETED = "ROPESWITCH_TEST_ASYNC" in os.environ
# A process of `test_runners_models.py` runs what is among the long tests elsewhere.
pytestmark = [] if INTERPRETED else [pytest.mark.full]

if INTERPRETED:
    from tests.exactness.runner_cases import (
        test_a_captured_graph_would_read_the_same_buffers,
        test_the_engine_is_the_one_that_was_asked_for,
        test_v1_keeps_true_positions_and_dummy_runs_read_rows,
        test_warm_up,
    )

Start = Callable[..., LLM]


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Phi-3 without LongRoPE, which the imported tests are given for theirs."""
    return checkpoint(tmp_path_factory.mktemp("phi3"), "Phi3")[0]


@pytest.fixture(scope="module")
def phi3_reference(phi3: Path) -> StaticReference:
    return StaticReference.load(phi3, yarn_sets(PLAIN, (128, 256, LONGEST)))


def automatic(start: Start) -> Start:
    def start_engine(folder: Path, **changes: Any) -> LLM:
        # All parts, as `ropeswitch serve` has them: the imported tests compare the patches that workers report.
        llm = start(folder, AUTO | {"parts": list(PARTS)}, **({"max_model_len": LONGEST} | changes))
        settings = settings_of(llm.llm_engine.vllm_config)
        assert settings is not None and settings.ladder.names == SETS
        return llm

    return start_engine


@pytest.fixture
def start(start: Start) -> Start:
    """Starts engines in this process, with the automatic ladder."""
    return automatic(start)


@pytest.fixture
def start_processes(start_processes: Start) -> Start:
    return automatic(start_processes)


def test_two_sets_crossed_by_one_request(start: Start, phi3: Path, phi3_reference: StaticReference) -> None:
    check_twice(start(phi3), phi3_reference)


def test_forced_sets_of_the_ladder(start: Start, phi3: Path, phi3_reference: StaticReference) -> None:
    """A set asked for by name serves the request at every length, beside requests that switch."""
    llm = start(phi3)
    names = [*SETS, None] * 2
    token_lists = prompts([30] * 5 + [110] * 5)
    params = [greedy(12) if name is None else greedy(12, extra_args={"rope_factor_set": name}) for name in names]
    sets = dict(zip(SETS, phi3_reference.by_end.values(), strict=True))
    for prompt, name, (tokens, log_probs) in zip(token_lists, names, run(llm, token_lists, params), strict=True):
        reference = phi3_reference if name is None else sets[name]
        reference.check(prompt, tokens, log_probs)
