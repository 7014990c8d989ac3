"""Images and videos compiled, preempted, uncached, on two ranks and after a sleep; and text alone, in every family."""

from pathlib import Path

import pytest

from tests.exactness.auto_cases import CHUNKED, check_twice
from tests.exactness.batches import SMALL, Start
from tests.exactness.engines import preemptions, scheduler_of
from tests.exactness.sleeping import sleep_and_wake, sleeping_cpus
from tests.exactness.static_reference import StaticReference
from tests.vision.families import FAMILIES
from tests.vision.test_media import CASES, check, serving

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


# An image, a switch while decoding, text alone, a video.
FEW = [CASES[0], (CASES[3][0], 20), CASES[7], (CASES[8][0], 10)]


def test_level_2_with_positions_on_several_axes(start: Start, tmp_path: Path) -> None:
    """M-RoPE after sleep level 2: rows, and on the V2 runner the row numbers of each axis, are written anew."""
    with sleeping_cpus():
        llm, media = serving(start, tmp_path, "qwen2.5-vl")
        check(llm, media, FEW)
        sleep_and_wake(llm)
        check(llm, media, FEW)


NO_MEDIA = {"limit_mm_per_prompt": {"image": 0, "video": 0}}


@pytest.mark.parametrize("name", FAMILIES)
def test_text_alone(start: Start, tmp_path: Path, name: str) -> None:
    """Tokens equal Hugging Face with static YaRN."""
    each = FAMILIES[name]
    folder = each.save(tmp_path)
    check_twice(start(folder, each.key, **CHUNKED, **NO_MEDIA, **each.engine), StaticReference.load(folder, each.sets))
