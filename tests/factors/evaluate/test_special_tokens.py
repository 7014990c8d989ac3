"""Tokenizers that append a token to a text, as with ``add_eos_token``: no window or prompt ends with it."""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget
from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.evaluate.target import special_tokens
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.search.objective import make_objective
from ropeswitch.factors.search.settings import SearchSettings
from tests.factors.conftest import MODEL
from tests.factors.evaluate.scripted import Scripted
from tests.loadtests.client.scripted import serving


@pytest.fixture
def appending() -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (begin, end)]
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A {end}", special_tokens=ids)
    assert tokenizer.encode("a")[-1] == tokenizer.eos_token_id
    return tokenizer


def test_a_local_model_and_a_search(
    model: LocalModel, target: LocalTarget, texts: Path, appending: PreTrainedTokenizerFast
) -> None:
    found = LocalTarget(MODEL, replace(model, tokenizer=appending), model.ladder)
    assert found.opening == target.opening == (appending.bos_token_id,)
    assert found.encode("The pass key is") == target.encode("The pass key is")
    settings = SearchSettings(200, documents=2)
    rows = [make_objective(texts, each, settings).rows for each in (model.tokenizer, appending)]
    assert rows[0] == rows[1]


def test_a_server_appends_it_to_prompts_and_is_refused(tmp_path: Path, appending: PreTrainedTokenizerFast) -> None:
    appending.save_pretrained(tmp_path)
    server = Scripted()
    with serving(server), pytest.raises(FactorError, match="the tokenizer appends special tokens to a text"):
        EndpointTarget.connect(server.url, None, str(tmp_path), False)


def test_a_tokenizer_that_changes_the_text_is_refused() -> None:
    with pytest.raises(FactorError, match="changes a text's own tokens"):
        special_tokens(lambda text, special: [1, 9] if special else [5])
