"""Images and videos in other modes: compiled, in short chunks, preempted, without a prefix cache, on two ranks."""

from pathlib import Path

import pytest

from tests.exactness.batches import SMALL, Start
from tests.exactness.engines import preemptions, scheduler_of
from tests.vision.test_media import CASES, check, serving

pytestmark = pytest.mark.full
# Without the prompts that are longer than what the small cache holds.
OUTPUT = 100
SHORT = [(prompt, OUTPUT) for prompt, _ in CASES[:6]]


def test_compiled(start: Start, tmp_path: Path) -> None:
    check(*serving(start, tmp_path, "qwen2-vl", enforce_eager=False))


def test_without_a_prefix_cache(start: Start, tmp_path: Path) -> None:
    check(*serving(start, tmp_path, "qwen3-vl", enable_prefix_caching=False))


def test_preemption(start: Start, tmp_path: Path) -> None:
    llm, media = serving(start, tmp_path, "qwen2.5-vl", **SMALL)
    preempted = preemptions(scheduler_of(llm))
    check(llm, media, SHORT * 2)
    lengths = [len(media.expected(prompt)[0]) for prompt, _ in SHORT * 2]
    switches = sum(length <= end < length + OUTPUT - 1 for length in lengths for end in (64, 128, 256))
    assert len(preempted) > switches


def test_two_ranks(start_processes: Start, tmp_path: Path) -> None:
    check(*serving(start_processes, tmp_path, "qwen2.5-vl", tensor_parallel_size=2))
