"""What is judged, against transformers' own loss."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.model_facts import ModelFacts, fingerprint
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.search.objective import make_objective
from ropeswitch.factors.search.settings import SearchSettings
from tests.factors.conftest import MODEL


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    return ModelFacts.load(MODEL)


def test_perplexity_is_transformers_own(facts: ModelFacts, texts: Path) -> None:
    """Its long factors, which its own code takes above the window: exp of the mean of transformers' losses."""
    objective = make_objective(texts, facts.tokenizer, SearchSettings(400, documents=2))
    assert facts.rope == Rope(32, 10000.0, 256)
    assert facts.ladder is not None and facts.ladder.names == ("short", "long")
    found = objective.perplexity(LocalModel.load(MODEL), facts.ladder.sets[1])
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with torch.no_grad():
        losses = [float(model(ids, labels=ids).loss) for ids in (torch.tensor([row]) for row in objective.rows)]
    assert found == pytest.approx(math.exp(sum(losses) / 2), rel=1e-4)


def test_rows_are_the_beginnings_of_texts(facts: ModelFacts, texts: Path) -> None:
    settings = SearchSettings(400, documents=3, tokens_judged=7)
    objective = make_objective(texts, facts.tokenizer, settings)
    assert objective.names == ("0.txt", "1.txt", "2.txt") and objective.judged == 7
    for row, name in zip(objective.rows, objective.names, strict=True):
        assert list(row) == facts.tokenizer.encode((texts / name).read_text())[:400]
        assert row[0] == facts.tokenizer.bos_token_id
    other = make_objective(texts, facts.tokenizer, SearchSettings(400, documents=3))
    assert other.rows == objective.rows and other.digest != objective.digest


def test_the_seed_chooses_among_the_texts_that_are_long_enough(facts: ModelFacts, texts: Path) -> None:
    chosen = {make_objective(texts, facts.tokenizer, SearchSettings(400, documents=1, seed=n)).names for n in range(12)}
    assert chosen == {("0.txt",), ("1.txt",), ("2.txt",)}


def test_the_fingerprint_is_the_weights_and_the_config_s(plain: str, broken: str) -> None:
    """Of the last two one has another config than the first, the other another weight than that."""
    assert len({fingerprint(name) for name in (MODEL, MODEL, plain, broken)}) == 3
