"""What the tests of the automatic ladder share: its sets on a window of 64 tokens, and a batch that meets each of them."""

from collections.abc import Mapping
from typing import Any

from vllm import LLM

from tests.exactness.batches import check
from tests.exactness.engines import greedy, prompts
from tests.exactness.static_reference import StaticReference

WINDOW, LONGEST = 64, 512
AUTO = {"ladder": "auto"}
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 5000.0}
# Prompts and the tokens after them: short, through two sets, at each end and one past it, through one set, long.
CASES = [(20, 12), (60, 80), (64, 8), (65, 8), (127, 8), (250, 20), (430, 12)]
# Fewer tokens a step than most prompts have: they are prefilled in chunks.
CHUNKED = {"max_model_len": LONGEST, "max_num_batched_tokens": 96}


def yarn_sets(plain: Mapping[str, Any], ends: tuple[int, ...] = (128, 256, 512), **changes: Any) -> dict[int, Any]:
    """The rotary parameters that the automatic ladder should amount to: none up to the window, then YaRN by length."""
    yarn = dict(plain) | {"rope_type": "yarn", "original_max_position_embeddings": WINDOW}
    return {WINDOW: plain} | {end: yarn | {"factor": end / WINDOW} | changes for end in ends}


def check_twice(llm: LLM, reference: StaticReference, cases: list[tuple[int, int]] = CASES) -> None:
    """Check one batch against the reference, and again with what the prefix cache has of it."""
    token_lists = prompts([length for length, _ in cases])
    params = [greedy(count) for _, count in cases]
    # A wrong set could not pass.
    assert reference.closest_sets(token_lists[-1]) > 0.02
    for _ in range(2):
        check(llm, reference, token_lists, params)
