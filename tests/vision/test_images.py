"""Images for models without M-RoPE: tokens and log-probabilities equal Hugging Face with static YaRN.

Llama 4 is not among them: stock vLLM's CPU build fails on its first image, in the product of its patches with their weights.
"""

from pathlib import Path

import pytest

from tests.exactness.batches import Start, full_but
from tests.vision.media import Prompt
from tests.vision.processors import PROCESSORS, Processor
from tests.vision.test_media import check, serving


def prompt_of(length: int, processor: Processor, *parts: int | tuple[int, int]) -> Prompt:
    """The prompt of these parts and as much text behind them as makes it ``length`` tokens long."""
    taken = sum(part if isinstance(part, int) else processor.tokens(*part) for part in parts)
    assert taken < length
    return Prompt((*parts, length - taken))


def cases_of(processor: Processor) -> list[tuple[Prompt, int]]:
    """Prompts and the tokens after them; sets end at 64, 128, 256 and 512."""
    one, two = (1, 1), (2, 1)
    return [
        (prompt_of(40, processor, 6, one), 12),
        # Across the end of a set within the prompt, and of the next while decoding.
        (prompt_of(100, processor, 30, two), 40),
        # Before the end, which is crossed while decoding; twice.
        (prompt_of(60, processor, 15, one), 80),
        (prompt_of(61, processor, 1, one, 3, one), 10),
        # At the end, and one past it.
        (prompt_of(64, processor, 20, one), 8),
        (prompt_of(65, processor, 20, one), 8),
        # Chunks end within it.
        (prompt_of(300, processor, 90, two, 40, one), 8),
        (prompt_of(440, processor, 85, one, 100, two, 30, (1, 2)), 12),
        (Prompt((40,)), 40),
    ]


@pytest.mark.parametrize("name", full_but(["mistral3"], ["mistral3", "llava", "gemma3", "internvl"]))
def test_a_family_and_its_cached_prompts(start: Start, tmp_path: Path, name: str) -> None:
    llm, media = serving(start, tmp_path, name)
    cases = cases_of(PROCESSORS[name])
    check(llm, media, cases)
    assert sum(count > 0 for count in check(llm, media, cases)) == len(cases)
    # A wrong set could not pass.
    tokens, reference = media.expected(cases[-2][0])
    assert reference.closest_sets(tokens) > 0.02
