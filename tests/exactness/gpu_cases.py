"""Sleep mode on a GPU, in a process of its own: vLLM's memory pool for it allows one engine in a process.

``tests/gpu/run.py`` runs it; ``test_sleep.py`` has more cases, on CPUs, with a pool of the tests.
"""

from collections.abc import Callable
from pathlib import Path

from vllm import LLM

from tests.exactness.batches import check_batch
from tests.exactness.reference import Reference

LENGTHS = [62, 64, 65]


def test_graphs_answer_as_before_after_each_level(
    start: Callable[..., LLM], phi3: Path, phi3_reference: Reference
) -> None:
    llm = start(phi3, enable_sleep_mode=True, enforce_eager=False, enable_prefix_caching=True, max_num_seqs=4)
    check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)
    for level in (1, 2):
        llm.sleep(level=level)
        llm.wake_up(tags=["weights"])
        if level == 2:
            llm.collective_rpc("reload_weights")
        assert llm.llm_engine.is_sleeping()
        llm.wake_up(tags=["kv_cache"])
        assert not llm.llm_engine.is_sleeping()
        check_batch(llm, phi3_reference, LENGTHS, max_tokens=5)
