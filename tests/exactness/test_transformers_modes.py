"""A model of vLLM's Transformers backend in every mode of the engine: the tests of the automatic ladder, on SmolLM3."""

from pathlib import Path
from typing import Any

import pytest
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from tests.exactness import checkpoints
from tests.exactness.auto_cases import PLAIN, WINDOW, yarn_sets
from tests.exactness.checkpoints import SHAPE
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_auto_modes import (
    INTERPRETED,
    LONGEST,
    pytestmark,
    start,
    start_processes,
    test_a_crossing_leaves_both_sets_cached,
    test_a_users_salt_is_kept,
    test_chunked_prefill,
    test_cold_and_warm,
    test_compiled,
    test_eager_mixed_batch_leaks_no_block,
    test_forced_sets_of_the_ladder,
    test_preemption,
    test_prefix_caching_off,
    test_priority_scheduling,
    test_prompt_log_probabilities,
    test_sets_share_no_block,
    test_several_choices,
    test_streamed_steps_deliver_every_token_once_through_aborts,
    test_two_ranks,
    test_two_sets_crossed_by_one_request,
)

if INTERPRETED:
    from tests.exactness.runner_cases import (
        test_a_captured_graph_would_read_the_same_buffers,
        test_v1_keeps_true_positions_and_dummy_runs_read_rows,
        test_warm_up,
    )


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SmolLM3 whose second layer does not rotate, which the imported tests are given for theirs."""
    values: dict[str, Any] = SHAPE | {"max_position_embeddings": WINDOW, "no_rope_layer_interval": 2}
    config = SmolLM3Config(rope_parameters=PLAIN, **values)
    return checkpoints.save(SmolLM3ForCausalLM, config, tmp_path_factory.mktemp("smollm3"), 5)


@pytest.fixture(scope="module")
def phi3_reference(phi3: Path) -> StaticReference:
    return StaticReference.load(phi3, yarn_sets(PLAIN, (128, 256, LONGEST)))
