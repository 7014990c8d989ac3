"""passkey-tiny's prompts, and the judgement of replies to them."""

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.passkey_tiny import FOLDER
from tests.passkey_tiny.passkey import found, make_prompt, prompt_ids
from tests.passkey_tiny.text import KEY_DIGITS


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("total_tokens", [40, 41, 100, 255, 256, 257, 980])
def test_prompts_have_exactly_the_tokens_asked_for(
    tokenizer: PreTrainedTokenizerBase, total_tokens: int, chat: bool
) -> None:
    for seed in range(5):
        prompt, digits = make_prompt(tokenizer, total_tokens, seed, chat=chat)
        assert len(prompt_ids(tokenizer, prompt)) == total_tokens
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]
        assert text.count(f"The pass key is {digits}.") == 1
        assert len(tokenizer.encode(digits, add_special_tokens=False)) == KEY_DIGITS


def test_found_wants_both_statements_and_no_other_number() -> None:
    assert found("The pass key is 123456. To be sure: it is 123456.", "123456")
    assert not found("The pass key is 123456.", "123456")
    assert not found("The pass key is 123456. To be sure: it is ??????.", "123456")
    assert not found("The pass key is 123456. To be sure: it is 123457.", "123456")
