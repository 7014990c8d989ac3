"""Streams of text that know the end of their prompt give what those give that know all of it."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from ropeswitch.server.front.bodies import long_prompts as module
from ropeswitch.server.front.bodies.long_prompts import prompt_end, with_prompt_end

LETTERS = list("abcdefghij")
MARKED = [f"▁{letter}" for letter in LETTERS]


def bpe(tokens: Sequence[str], **options: Any) -> Tokenizer:
    return Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(tokens)}, merges=[], **options))


def byte_level() -> Tokenizer:
    made = bpe(sorted(pre_tokenizers.ByteLevel.alphabet()))
    made.decoder = decoders.ByteLevel()
    return made


def sentence_piece() -> Tokenizer:
    """As those of Llama and Mistral: words begin with a mark, unknown characters are bytes, the first space goes."""
    made = bpe([*LETTERS, *MARKED, "▁", *(f"<0x{byte:02X}>" for byte in range(256))], byte_fallback=True)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def metaspace() -> Tokenizer:
    made = bpe([*LETTERS, *MARKED])
    made.decoder = decoders.Metaspace()
    return made


def word_piece() -> Tokenizer:
    tokens = ["[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", ",", "'", "n't"]
    made = Tokenizer(models.WordPiece(vocab={token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    return made


def outcome(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int]) -> list[str | None]:
    """What each token adds, up to the first at which the library gives up."""
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)
    texts: list[str | None] = []
    for each in answer:
        try:
            texts.append(stream.step(tokenizer, each))
        except Exception as error:
            return [*texts, str(error)[:40]]
    return texts


@pytest.mark.parametrize("make", [byte_level, sentence_piece, metaspace, word_piece])
def test_the_same_text_as_after_the_whole_prompt(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    tokenizer.add_special_tokens(["<special>"])
    special = tokenizer.token_to_id("<special>")
    tokens = st.integers(0, 20) | st.integers(0, tokenizer.get_vocab_size() - 1)
    cut = []

    @given(
        st.lists(tokens | st.just(special), min_size=1, max_size=40),
        st.lists(tokens, min_size=1, max_size=8),
        st.integers(0, 2**32),
    )
    def check(end: list[int], answer: list[int], seed: int) -> None:
        generator = random.Random(seed)
        prompt = [generator.randrange(generator.choice([20, tokenizer.get_vocab_size()])) for _ in range(100)] + end
        short = prompt_end(tokenizer, prompt, True)
        cut.append(len(short) < len(prompt))
        assert outcome(tokenizer, short, answer) == outcome(tokenizer, prompt, answer)

    monkeypatch.setattr(module, "END", 8)
    check()
    assert any(cut)


def test_a_prompt_that_ends_in_no_text() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<special>"])
    special = tokenizer.token_to_id("<special>")
    prompt = [*range(60, 70), *[special] * 5000]
    # As many as reach the text, or all where none do.
    assert len(prompt_end(tokenizer, prompt, True)) == len(prompt)
    assert len(prompt_end(tokenizer, [70] * 5000 + prompt[10:2010], True)) == 4096
    assert len(prompt_end(tokenizer, prompt, False)) == 1024


def test_only_the_detokenizer_sees_less() -> None:
    params = SimpleNamespace(skip_special_tokens=True)
    request = SimpleNamespace(prompt_token_ids=[65] * 1025, sampling_params=params)
    tokenizer = SimpleNamespace(_tokenizer=byte_level())
    assert len(with_prompt_end(request, tokenizer).prompt_token_ids) == 1024
    assert len(request.prompt_token_ids) == 1025
    # A tokenizer that is not one of Hugging Face's in Rust, and a request that generates nothing.
    assert with_prompt_end(request, SimpleNamespace()) is request
    request.sampling_params = None
    assert with_prompt_end(request, tokenizer) is request
