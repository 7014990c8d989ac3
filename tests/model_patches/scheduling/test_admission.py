"""Which requests may pass one that waits for memory."""

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.admission import Admission
from ropeswitch.model_patches.scheduling.engine import Limits, SchedulerEngine
from ropeswitch.model_patches.scheduling.step_cost import StepCost
from ropeswitch.model_patches.scheduling.waiting_queue import WaitingQueue
from ropeswitch.model_patches.switch.engine.scheduler import LadderScheduler

BLOCK, BLOCKS = 16, 1001


def request(name: str, prompt: int, answer: int) -> Request:
    init_none_hash(sha256)
    params = SamplingParams(max_tokens=answer, ignore_eos=True)
    return Request(name, [1] * prompt, params, None, block_hasher=get_request_block_hasher(BLOCK, sha256))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_passes_a_long_prompt_counts_in_every_group_of_the_cache(groups: int) -> None:
    """As for models with layers of a sliding window, which share the blocks."""
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    window = SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=16_000
    )
    specs = [full, *[window] * (groups - 1)]
    config = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec([str(i)], spec) for i, spec in enumerate(specs)])
    manager = KVCacheManager(config, 16_000, BLOCK, BLOCK)
    scheduler = SimpleNamespace(kv_cache_manager=manager, max_model_len=16_000)
    scheduler._is_blocked_waiting_status = scheduler.gives_up_blocks = lambda each: False
    engine = SchedulerEngine.__new__(SchedulerEngine)
    engine._scheduler = cast(LadderScheduler, scheduler)
    queue = WaitingQueue(lambda each: (each.num_tokens, 0), False, lambda: 0.0)
    # The long prompt takes most of the memory, which a running stream has now.
    long, short = request("long", (BLOCKS - 1 - 40) // groups * BLOCK, 1), request("short", 100, 200)
    for each in (long, short):
        queue.add_request(each)
    view = Mock(
        slots=8, free_blocks=900, inflight_prefills=[], running=[Mock(lora_request=None)], reserved_blocks=0, now=1e6
    )
    queue.arrival(view.running[0]).turn = -1
    view.running[0].priority = 0
    limits = Limits(8192, 8192, 16, True, 0, BLOCK, BLOCKS - 1, None, False)
    admission = Admission(view, limits, engine, queue, StepCost([(1, 0.01), (1000, 0.1)], 64), 0.05)
    assert not admission.fits(long)
    # The short one's 300 tokens take 19 blocks in each group.
    fitting = 0
    while admission.fits(short) and fitting < 10:
        admission.deduct(short)
        fitting += 1
    assert fitting == 40 // (19 * groups)
