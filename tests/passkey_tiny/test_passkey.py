"""Limits of factor sets are met to the token: passkey-tiny's prompts have exactly the tokens asked for."""

import pytest
from transformers import AutoTokenizer

from tests.passkey_tiny import FOLDER
from tests.passkey_tiny.passkey import KEY_DIGITS, found, make_prompt, prompt_ids, reply


@pytest.mark.parametrize("chat", [True, False])
def test_prompts_have_exactly_the_tokens_asked_for(chat: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for seed, total_tokens in enumerate((40, 41, 100, 255, 256, 257, 980)):
        prompt, digits = make_prompt(tokenizer, total_tokens, seed, chat=chat)
        assert len(prompt_ids(tokenizer, prompt)) == total_tokens
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]
        assert text.count(f"The pass key is {digits}.") == 1
        assert len(tokenizer.encode(digits, add_special_tokens=False)) == KEY_DIGITS


def test_a_reply_needs_both_statements_and_no_other_number() -> None:
    assert found(reply("123456"), "123456") and not found("The pass key is 123456.", "123456")
    assert not found("The pass key is 123456. To be sure: it is 123457.", "123456")
