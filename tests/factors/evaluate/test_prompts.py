"""Prompts: exact lengths for any tokenizer, the published wording, and what is hidden in them where."""

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from ropeswitch.factors.evaluate.passkey import ask, is_found, passkey_text, statement
from ropeswitch.factors.factor_set import FactorError
from tests.factors.conftest import MODEL
from tests.loadtests.client.test_prompts import tokenizer

GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
Encode = Callable[[str], list[int]]
BUNDLED = AutoTokenizer.from_pretrained(MODEL)
BUNDLED.model_max_length = 1 << 62
TOKENIZERS: dict[str, Encode] = {
    "bundled": BUNDLED.encode,
    "bytes": lambda text: list(text.encode()),
    # Spaces are parts of tokens; one of them begins each text with a token of its own.
    **{name: tokenizer(name).text for name in ("llama", "unigram")},
}


@settings(max_examples=60)
@given(st.sampled_from(sorted(TOKENIZERS)), st.integers(100, 1400), st.integers(0, 1 << 20))
def test_prompts_have_exactly_the_tokens_asked_for(kind: str, tokens: int, seed: int) -> None:
    encode = TOKENIZERS[kind]
    try:
        question = ask(encode, tokens, random.Random(seed))
    except FactorError as error:
        with pytest.raises(FactorError) as refused:
            ask(encode, 1, random.Random(seed))
        least = re.fullmatch(r"passkey prompt: 1 tokens are too few; it needs at least (\d+) .*", str(refused.value))
        # The first character of filler brings a line break with it, so one token more than the least cannot be had.
        assert least and (int(least[1]) > tokens or int(least[1]) == tokens - 1), error
        return
    assert len(encode(question.text)) == tokens
    assert statement(question.key) in question.text


def test_the_pass_key_prompt_is_the_papers() -> None:
    """LongRoPE (arXiv:2402.13753), appendix: the filler x times, the key's line, the filler y times."""
    text = passkey_text("17865", 1 / 3, 3 * len(GARBAGE) + 1)
    expected = (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
        f"about the important information there. {GARBAGE} The pass key is 17865. Remember it. 17865 is the pass key. "
        f"{GARBAGE} {GARBAGE} What is the pass key? The pass key is"
    )
    assert text.split() == expected.split()


def test_keys_and_places_are_drawn() -> None:
    rng = random.Random(3)
    found = [ask(BUNDLED.encode, 200, rng) for _ in range(20)]
    keys, depths = [each.key for each in found], [each.depth for each in found]
    assert all(len(key) == 5 for key in keys) and len(set(keys)) == 20
    assert min(depths) < 0.2 < 0.8 < max(depths)
    last = max(found, key=lambda each: each.text.index(each.key))
    assert last.depth == max(depths)


def test_what_counts_as_found() -> None:
    assert is_found(" 17865. Remember", "17865") and is_found("It is 17865", "17865")
    assert not is_found(" 178652", "17865") and not is_found(" 1 17865", "17865") and not is_found("", "17865")
