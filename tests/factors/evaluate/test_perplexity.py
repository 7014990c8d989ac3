"""Perplexity on this machine, against Hugging Face's own forward pass, which switches its factors by length."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.evaluate.perplexity import PerplexitySettings, judge, windows_of
from ropeswitch.factors.evaluate.statistics import perplexity, wilson
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.local_model import LocalModel
from tests.factors.conftest import MODEL
from tests.factors.evaluate.conftest import answered


@pytest.mark.parametrize("length", [250, 300])
def test_the_rule_is_hugging_faces(target: LocalTarget, texts: Path, length: int) -> None:
    """Both sides of the limit of 256: transformers' own loss of each window, the tokens judged before masked out."""
    settings = PerplexitySettings(documents=3, windows=2, stride=100)
    corpus = Corpus.read(texts)
    found = judge(target, corpus, "switched", length, 7, settings)
    assert [each["windows"] for each in found] == [2, 2, 2]
    theirs = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    bos = target.model.tokenizer.bos_token_id
    by_name = {document.name: document for document in corpus.documents}
    assert {each["document"] for each in found} == set(by_name)
    for each in found:
        ids = target.plain_ids(by_name[each["document"]].text)
        nll, tokens = 0.0, 0
        for number in range(2):
            start = each["start"] + 100 * number
            window = torch.tensor([[bos, *ids[start : start + length - 1]]])
            labels = window.clone()
            labels[:, : 1 if number == 0 else length - 100] = -100
            with torch.no_grad():
                loss = theirs(window, labels=labels).loss
            judged = int((labels != -100).sum())
            nll, tokens = nll + loss.item() * judged, tokens + judged
        assert each["tokens"] == tokens == length - 1 + 100
        assert each["nll"] == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize(("length", "right", "wrong"), [(200, "short", "long"), (400, "long", "short")])
def test_the_wrong_set_is_seen_and_the_rule_takes_the_right_one(
    model: LocalModel, target: LocalTarget, tmp_path: Path, length: int, right: str, wrong: str
) -> None:
    settings = PerplexitySettings(documents=4, judge_last=answered(tmp_path, model, length, 4))
    corpus = Corpus.read(tmp_path)
    found = {name: judge(target, corpus, name, length, 0, settings) for name in target.sets}
    value = {name: perplexity([(each["nll"], each["tokens"]) for each in found[name]])[0] for name in found}
    assert found["switched"] == found[right]
    assert value[right] < 1.1 and value[wrong] > 5 * value[right]


@given(st.integers(1, 60), st.integers(2, 20), st.integers(1, 30), st.integers(1, 9), st.booleans())
def test_every_token_is_judged_once(count: int, length: int, stride: int, most: int, has_opening: bool) -> None:
    """Tokens are their own places here. Only a stride beyond what a window can judge leaves some out."""
    opening = (-1,) if has_opening else ()
    found = windows_of(list(range(count)), opening, length, stride, most)
    assert len(found) == max(0, min(most, (count - (length - len(opening))) // stride + 1))
    assert all(len(window.ids) == length and window.first >= 1 for window in found)
    judged = [place for window in found for place in window.ids[window.first :]]
    assert len(judged) == len(set(judged)) and -1 not in judged
    if found and stride < length:
        assert judged == list(range(0 if has_opening else 1, found[-1].ids[-1] + 1))


def test_a_loss_that_is_no_number(target: LocalTarget, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.model.model.model.norm, "forward", lambda hidden: hidden * math.nan)
    with pytest.raises(FactorError, match=r"set 'long', length 60, document '0.txt': a loss is not finite"):
        judge(target, Corpus.read(texts / "0.txt"), "long", 60, 0, PerplexitySettings(documents=1))


def test_intervals() -> None:
    """Wilson's as R's prop.test(correct=FALSE) has them; the error of a perplexity."""
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1), abs=1e-4)
    value, error = perplexity([(10.0, 10), (20.0, 10), (30.0, 10)])
    assert value == pytest.approx(math.exp(2)) and error == pytest.approx(math.exp(2) / math.sqrt(3))
    assert perplexity([(10.0, 10)])[1] is None
    with pytest.raises(FactorError, match="mean loss of 100000 nats"):
        perplexity([(1e6, 10)])
