"""One model of each mechanism in every mode of the engine: the tests of other modules, on families instead of Phi-3.

Mechanisms: a base for each type of layer, attention scaled by positions (in two ways), recurrent layers (and Mamba-2 ones),
scaling that the model was trained with and reads itself, a text model inside a multimodal one, a base for each type of layer
in vLLM's Transformers backend, a base that no config states.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM

from tests.exactness.auto_cases import WINDOW, check_twice
from tests.exactness.families import FAMILIES, Family
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_modes import (
    test_chunked_prefill,
    test_compiled,
    test_eager_mixed_batch_leaks_no_block,
    test_preemption,
)

MECHANISMS = ("gemma3", "ministral3", "lfm2", "gpt-oss", "llama4", "falcon-h1", "idefics3", "olmo3", "gptj")
# The longest that fits the small KV cache of the test of preemption.
LONGEST = 480
INTERPRETED = "ROPESWITCH_TEST_ASYNC" in os.environ
# A process of `test_runners_models.py` runs what is among the long tests elsewhere.
pytestmark = [] if INTERPRETED else [pytest.mark.full]

Start = Callable[..., LLM]


@pytest.fixture(scope="module", params=MECHANISMS)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def phi3(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model, which the imported tests are given for theirs."""
    return family.save(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def phi3_reference(family: Family, phi3: Path) -> StaticReference:
    *shorter, last = family.sets.items()
    return family.reference(phi3, dict(shorter) | {LONGEST: dict(last[1]) | {"factor": LONGEST / WINDOW}})


def laddered(start: Start, family: Family) -> Start:
    def start_engine(folder: Path, **changes: Any) -> LLM:
        return start(folder, family.key, **{"max_model_len": LONGEST} | dict(family.engine) | changes)

    return start_engine


@pytest.fixture
def start(start: Start, family: Family) -> Start:
    """Starts engines in this process, with the family's ladder."""
    return laddered(start, family)


@pytest.mark.full
def test_two_ranks(start_processes: Start, family: Family, phi3: Path, phi3_reference: StaticReference) -> None:
    start = laddered(start_processes, family)
    check_twice(start(phi3, tensor_parallel_size=2, max_num_batched_tokens=96), phi3_reference)
