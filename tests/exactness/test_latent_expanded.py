"""A DeepSeek V3 whose latents are expanded to keys and values (``VLLM_MLA_DISABLE=1``): chunks and prefix cache."""

from collections.abc import Callable, Iterator

import pytest
import vllm.envs
from vllm import LLM

from tests.exactness.conftest import starting
from tests.exactness.latent_models import EXPANDED_PER_TOKEN, starting_trained
from tests.exactness.test_latent_modes import phi3, phi3_reference
from tests.exactness.test_modes import test_chunked_prefill, test_compiled, test_preemption
from tests.exactness.test_prefix_cache import (
    test_a_crossing_leaves_both_sets_cached,
    test_a_users_salt_is_kept,
    test_cold_and_warm,
    test_sets_share_no_block,
)

pytestmark = pytest.mark.full
Start = Callable[..., LLM]


@pytest.fixture
def start() -> Iterator[Start]:
    # An engine in this process makes vLLM keep its environment as it is.
    vllm.envs.disable_envs_cache()
    for start in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_MLA_DISABLE="1"):
        yield starting_trained(start, EXPANDED_PER_TOKEN)
    vllm.envs.disable_envs_cache()
