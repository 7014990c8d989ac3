"""What a training step is given reaches the model, and the first layers begin as fresh_model says."""

import random
from dataclasses import replace

import pytest
import torch

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.models.miniature import anchor
from ropeswitch.models.miniature.rows import Mix, RowWriter
from ropeswitch.models.miniature.shape import PAIRS, RATIO, WINDOW, fresh_model, plain
from ropeswitch.models.miniature.tokenizer import build_tokenizer
from ropeswitch.models.miniature.train import Layout, step_loss

TOKENIZER = build_tokenizer(RATIO * WINDOW)
PLAIN = plain()
LONG = replace(PLAIN, factors=tuple(2.0 + pair for pair in range(PAIRS)))


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    anchor.register()
    torch.manual_seed(0)


def loss(model: torch.nn.Module, layout: Layout, factor_set: FactorSet = PLAIN) -> float:
    writer = RowWriter(TOKENIZER, random.Random(1), Mix(keys=0.0))
    return step_loss(model, writer, layout, factor_set)[0].item()


def test_the_factor_set_and_skipped_positions_reach_the_rotation() -> None:
    model = fresh_model(TOKENIZER)
    model.set_attn_implementation("anchor")
    plain = loss(model, Layout(1.0, 1, 200))
    assert loss(model, Layout(1.0, 1, 200)) == plain
    assert loss(model, Layout(1.0, 1, 200), LONG) != pytest.approx(plain, abs=1e-5)
    assert loss(model, Layout(1.0, 1, 200, span=5000)) != pytest.approx(plain, abs=1e-5)


def test_packed_documents_do_not_see_each_other_in_training() -> None:
    model = fresh_model(TOKENIZER)
    model.set_attn_implementation("anchor")
    packed = loss(model, Layout(1.0, 1, 301, documents=3))
    plain = anchor.anchor_attention
    seen = []

    def as_one(*args: object, documents: object = None, **kwargs: object) -> object:
        seen.append(documents)
        return plain(*args, **kwargs)  # type: ignore[arg-type]

    anchor.ALL_ATTENTION_FUNCTIONS.register(anchor.NAME, as_one)
    try:
        one = loss(model, Layout(1.0, 1, 301, documents=3))
    finally:
        anchor.register()
    assert one != pytest.approx(packed, abs=1e-5)
    assert seen == [[100, 100, 100]] * len(model.model.layers)


def test_heads_begin_looking_one_and_two_tokens_back_and_comparing_what_they_find() -> None:
    model = fresh_model(TOKENIZER)
    model.set_attn_implementation("eager")
    ids = torch.randperm(900)[:60][None] + 50
    # Said twice: a head that compares finds the token behind the same one.
    ids = torch.cat((ids, ids), 1)
    with torch.no_grad():
        first, second = (each[0] for each in model(ids, output_attentions=True).attentions)
    places = torch.arange(70, 120)
    for head in (0, 1):
        assert first[head, places, places - head - 1].mean() > 0.5
    assert second[0, places, places - 59].mean() > 5 / 120
