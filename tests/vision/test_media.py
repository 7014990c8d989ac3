"""Images and videos: tokens and log-probabilities equal Hugging Face with static YaRN.

Llama 4 is not among the models: stock vLLM's CPU build fails on its first image, in the product of its patches with their
weights.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from vllm import LLM
from vllm.exceptions import VLLMValidationError

from tests.exactness.auto_cases import AUTO, CHUNKED
from tests.exactness.batches import Start
from tests.exactness.engines import first_choice, greedy
from tests.exactness.static_reference import StaticReference
from tests.vision.families import FAMILIES
from tests.vision.media import Media, MediaReference, Prompt
from tests.vision.processors import PROCESSORS, Processor

# Prompts and the tokens after them. An image takes two tokens beside its own; sets end at 64, 128, 256 and 512.
CASES = [
    (Prompt((10, (4, 3), 9)), 12),
    # Across the end of two sets.
    (Prompt((50, (10, 8), 5)), 6),
    # Before the end, which is crossed while decoding; twice.
    (Prompt((30, (4, 3), 15)), 80),
    (Prompt((5, (3, 3), 10, (5, 2), 20)), 30),
    # At the end, and one past it.
    (Prompt((20, (4, 4), 26)), 8),
    (Prompt((20, (4, 4), 27)), 8),
    # Chunks end within it.
    (Prompt((90, (9, 8), 30, (8, 9), 100)), 8),
    (Prompt((40,)), 40),
    (Prompt((20,), video=0.5), 60),
    (Prompt((200, (6, 6), 40), video=0.5), 20),
]


def serving(start: Start, folder: Path, name: str, **changes: object) -> tuple[LLM, Media]:
    """An engine on a new checkpoint of that family, and the prompts for it."""
    family = FAMILIES[name]
    family.save(folder)
    PROCESSORS[name].make().save_pretrained(folder)
    llm = start(folder, AUTO, **(CHUNKED | {"skip_tokenizer_init": False} | family.engine | changes))
    return llm, Media(folder, StaticReference.load(folder, family.sets), PROCESSORS[name])


def check(llm: LLM, media: Media, cases: list[tuple[Prompt, int]] = CASES) -> list[int]:
    """Check one batch; returns the tokens of each prompt that the prefix cache had."""
    params = [greedy(count) for _, count in cases]
    outputs = llm.generate([media.request(prompt) for prompt, _ in cases], params, use_tqdm=False)
    for (prompt, count), output in zip(cases, outputs, strict=True):
        expected, reference = media.expected(prompt)
        assert list(output.prompt_token_ids) == expected
        tokens, log_probs = first_choice(output.outputs[0])
        assert len(tokens) == count
        reference.check(expected, tokens, log_probs)
    return [output.num_cached_tokens for output in outputs]


def test_a_time_axis_beyond_the_longest_sequence_and_prompts_that_are_too_long(start: Start, tmp_path: Path) -> None:
    """Frames 200 seconds apart: Qwen2.5-VL puts them at positions 0 and 800, where no sequence exceeds 512 tokens."""
    llm, media = serving(start, tmp_path, "qwen2.5-vl")
    prompt, media = Prompt((40,), video=200.0), replace(media, after_time=True)
    check(llm, media, [(prompt, 80)])
    tokens, reference = media.expected(prompt)
    first = reference.by_end[64]
    assert isinstance(first, MediaReference)
    assert int(first.positions(tokens, first.media["mm_token_type_ids"])[:, :, -1].max()) > 800
    with pytest.raises(VLLMValidationError, match="longer than the maximum model length of 512"):
        check(llm, media, [(Prompt((450, (10, 8))), 1)])
    # The engine goes on.
    check(llm, replace(media, after_time=False), CASES[:1])


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


# GLM-4.1V's videos have an image's tokens, and transformers 5.19 takes no prompt with both.
M_ROPE = {"qwen2.5-vl": CASES, "qwen2-vl": CASES, "qwen3-vl": CASES, "glm-4.1v": CASES[:-1]}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_family_and_its_cached_prompts(start: Start, tmp_path: Path, name: str) -> None:
    llm, media = serving(start, tmp_path, name)
    cases = M_ROPE.get(name) or cases_of(PROCESSORS[name])
    check(llm, media, cases)
    assert sum(count > 0 for count in check(llm, media, cases)) == len(cases)
    if name not in M_ROPE:
        # A wrong set could not pass.
        tokens, reference = media.expected(cases[-2][0])
        assert reference.closest_sets(tokens) > 0.02
