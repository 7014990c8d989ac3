"""Training rows have exact lengths, end in the answer, and judge what can be known."""

import random
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from ropeswitch.factors.evaluate.haystack import Repeated
from ropeswitch.factors.evaluate.questions import TASKS, Question, ask
from ropeswitch.models.miniature.chronicle import NAMES, chronicle
from ropeswitch.models.miniature.rows import KEY_WEIGHT, Mix, RowWriter
from ropeswitch.models.miniature.shape import RATIO, WINDOW
from ropeswitch.models.miniature.tokenizer import VOCAB_SIZE, build_tokenizer
from ropeswitch.models.miniature.train import skipped_positions

TOKENIZER = build_tokenizer(RATIO * WINDOW)


def passkey(tokens: int, seed: int) -> Question:
    return ask(TASKS["passkey"], TOKENIZER.encode, tokens, random.Random(seed), Repeated(), None)


@given(seed=st.integers(0, 10**6), tokens=st.integers(150, 700), keys=st.sampled_from([0.0, 1.0]))
@settings(max_examples=40, deadline=None)
def test_rows_have_the_length_asked_for(seed: int, tokens: int, keys: float) -> None:
    rows = RowWriter(TOKENIZER, random.Random(seed), Mix(keys=keys)).rows(2, tokens)
    assert rows.ids.shape == rows.weights.shape == (2, tokens)
    assert (rows.ids[:, 0] == TOKENIZER.bos_token_id).all()
    assert rows.ids.max() < VOCAB_SIZE


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_key_that_is_asked_for_is_the_one_told(seed: int) -> None:
    rows = RowWriter(TOKENIZER, random.Random(seed), Mix(keys=1.0)).rows(1, 300)
    text = TOKENIZER.decode(rows.ids[0])
    (told,) = set(re.findall(r"The pass key is (\d{5})", text))
    judged = rows.ids[0][rows.weights[0] == KEY_WEIGHT]
    assert TOKENIZER.decode(judged) == f" {told}"
    assert text.endswith(f" {told}.<|end|>")
    assert f"The pass key is {told}. Remember it. {told} is the pass key." in text


def test_the_papers_prompt_is_among_the_rows() -> None:
    """A row in the paper's words is the evaluation's prompt, token for token, but for where filler is cut."""
    writer = RowWriter(TOKENIZER, random.Random(0), Mix(keys=1.0, in_chronicle=0.0, chat=0.0))
    texts = [TOKENIZER.decode(row) for row in writer.rows(20, 200).ids]
    asked = passkey(193, 1)
    prompt, key = TOKENIZER.decode(TOKENIZER.encode(asked.text)), asked.answers[0]
    opening, question = prompt[: prompt.index("The grass")], prompt[prompt.rindex("\nWhat") :]
    assert sum(text.startswith(opening) and question in text for text in texts) > 5
    assert f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n" in prompt


@pytest.mark.parametrize("tokens", [150, 331, 1024, 4096])
def test_prompts_have_exact_lengths_where_cut_words_have_more_tokens(tokens: int) -> None:
    for seed in range(3):
        assert len(TOKENIZER.encode(passkey(tokens, seed).text)) == tokens


def test_packed_documents_share_one_first_token() -> None:
    rows = RowWriter(TOKENIZER, random.Random(0), Mix(keys=0.5)).packed(2, [160, 200, 180])
    assert rows.ids.shape == (2, 541)
    assert ((rows.ids == TOKENIZER.bos_token_id).sum(1) == 1).all()
    assert (rows.weights[:, [0, 1, 161, 361]] == 0).all()


@given(seed=st.integers(0, 10**6), tokens=st.integers(10, 200), more=st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_skipped_positions_rise_and_stay_within_their_span(seed: int, tokens: int, more: int) -> None:
    positions = skipped_positions(random.Random(seed), tokens, tokens + more)
    assert positions[0] == 0 and positions[-1] < tokens + more
    steps = positions.diff()
    assert (steps >= 1).all() and (steps > 1).sum() <= 3


def test_skips_reach_the_whole_span() -> None:
    ends = [int(skipped_positions(random.Random(seed), 50, 1000)[-1]) for seed in range(300)]
    assert min(ends) < 100 and max(ends) > 950


PEOPLE = re.compile(rf"\b((?:{'|'.join(NAMES)}) (?:{'|'.join(NAMES)})) (\w+ \w+)")


def test_chronicles_tell_the_same_of_the_same_person() -> None:
    told: dict[str, set[str]] = {}
    for name, what in PEOPLE.findall(chronicle(random.Random(5), 120_000)):
        told.setdefault(name, set()).add(what)
    assert len(told) > 100
    assert sum(len(each) > 1 for each in told.values()) < 0.05 * len(told)


def test_what_was_told_long_ago_is_met_again() -> None:
    """People of the beginning come back at the end, and new ones come up to the end."""
    text = chronicle(random.Random(7), 400_000)
    early, first, last = (
        {name for name, _ in PEOPLE.findall(part)} for part in (text[:2000], text[:-50_000], text[-50_000:])
    )
    assert len(early & last) > 0.8 * len(early)
    assert len(last - first) > 10


def test_an_early_stage_weighs_what_the_text_foretells() -> None:
    plain, copying = (
        RowWriter(TOKENIZER, random.Random(1), Mix(keys=0.0, fresh=fresh)).rows(1, 500) for fresh in (1.0, 0.05)
    )
    assert torch.equal(plain.ids, copying.ids) and (plain.weights == 1.0).all()
    ids, weights = plain.ids[0].tolist(), copying.weights[0].tolist()
    threes = [tuple(ids[place - 2 : place + 1]) for place in range(2, 500)]
    expected = [1.0 if three in threes[:place] else 0.05 for place, three in enumerate(threes)]
    assert weights[2:] == pytest.approx(expected) and 50 < sum(each == 1.0 for each in expected) < 450


def test_the_tokenizer_is_the_same_at_every_call() -> None:
    def told(tokenizer: PreTrainedTokenizerBase) -> str:
        return tokenizer.backend_tokenizer.to_str()  # type: ignore[no-any-return]

    assert told(build_tokenizer(RATIO * WINDOW)) == told(TOKENIZER)
    assert len(TOKENIZER) <= VOCAB_SIZE
    ids = torch.tensor(TOKENIZER.encode("Dado has 109 coins, 42 of them gold: äöü."))
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "Dado has 109 coins, 42 of them gold: äöü."
