"""An update of two ranks, each a process of its own: both load the ladder, or neither is ever asked to use it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM

from tests.exactness.engines import greedy, prompts
from tests.exactness.reference import Reference
from tests.exactness.test_ladder_updates import LENGTHS, NEW, OLD, Running, check

Start = Callable[..., LLM]
pytestmark = pytest.mark.full


@pytest.fixture
def start_two(start_processes: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    # For the function that breaks a rank.
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    yield start_processes


def call(llm: LLM, utility: str, *arguments: Any) -> Any:
    return llm.llm_engine.engine_core.call_utility(utility, *arguments)


def break_rank(worker: Any, rank: int) -> None:
    """Have one rank fail at its next load."""
    if worker.rank == rank:
        rows = worker.step_rows

        def load(settings: Any) -> None:
            del rows.load
            raise MemoryError("injected")

        rows.load = load


def test_a_rank_that_fails_leaves_both_in_the_old_ladder(start_two: Start, phi3: Path) -> None:
    model = Reference.load(phi3).model
    old, new = Reference(model, OLD), Reference(model, NEW)
    llm = start_two(phi3, tensor_parallel_size=2)
    running, token_lists = Running(llm), prompts(LENGTHS)
    for index, prompt in enumerate(token_lists):
        running.add(str(index), prompt, greedy(24))
    running.step(4)
    for rank in (0, 1):
        llm.collective_rpc(break_rank, args=(rank,))
        failure = call(llm, "load_ladder", f"fails-{rank}", "", NEW.to_json())
        assert failure == f"worker {rank}: MemoryError: injected"
        with pytest.raises(Exception, match="this engine has dropped it"):
            call(llm, "use_ladder", f"fails-{rank}", False)
        running.step(2)
    running.step()
    for index, prompt in enumerate(token_lists):
        old.check(prompt, *running.answer(str(index)))
    check(old, llm, greedy(8), seed=2)
    # What one rank had loaded is loaded by both.
    assert call(llm, "load_ladder", "2", "", NEW.to_json()) is None
    call(llm, "use_ladder", "2", False)
    check(new, llm, greedy(24), seed=3)
