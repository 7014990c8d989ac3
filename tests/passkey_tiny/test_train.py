"""The recipe: a run that is stopped and started again ends as one that never stopped."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.passkey_tiny import FOLDER, train
from tests.passkey_tiny.build_tokenizer import build_tokenizer
from tests.passkey_tiny.checkpoint import write_model
from tests.passkey_tiny.data import IGNORED, RowWriter, Rule, Style
from tests.passkey_tiny.recipe import LIMIT, Recipe, Stage, model_config
from tests.passkey_tiny.rope_sets import SetName

SMALL = Recipe(stages=(Stage(4, 512, 80, 160, near_share=0.5, wrong_share=0.5, margin=8, wild_share=0.5),))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


def test_a_stopped_run_goes_on_where_it_stopped(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train.train(SMALL, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(train, "CHECKPOINT_STEPS", 2)
    draw_length, calls = train.draw_length, []

    def stop_at_fourth(stage: Stage, rng: random.Random) -> int:
        calls.append(stage)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw_length(stage, rng)

    monkeypatch.setattr(train, "draw_length", stop_at_fourth)
    with pytest.raises(KeyboardInterrupt):
        train.train(SMALL, tokenizer, tmp_path / "stopped")
    resumed = train.train(SMALL, tokenizer, tmp_path / "stopped")
    assert len(calls) == 4 + 2
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)


def test_a_checkpoint_of_another_recipe_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    train.train(SMALL, tokenizer, tmp_path)
    with pytest.raises(ValueError, match="another recipe"):
        train.train(Recipe(seed=1, stages=SMALL.stages), tokenizer, tmp_path)


def test_writing_a_model_keeps_the_other_files(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text("card")
    (folder / "config.json").write_text("{}")
    write_model(folder, train.train(SMALL, tokenizer, tmp_path / "run"), tokenizer)
    assert (folder / "README.md").read_text() == "card"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "phi3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run"]


def test_the_bundled_files_are_the_recipes(tokenizer: PreTrainedTokenizerBase) -> None:
    bundled = json.loads((FOLDER / "tokenizer.json").read_text())
    assert json.loads(build_tokenizer().backend_tokenizer.to_str()) == bundled
    config = json.loads((FOLDER / "config.json").read_text())
    ours = model_config(tokenizer).to_dict()
    assert {key: ours[key] for key in config if key in ours and key not in ("architectures", "dtype")} == {
        key: value for key, value in config.items() if key in ours and key not in ("architectures", "dtype")
    }


@pytest.mark.parametrize("name", ["short", "long"])
def test_rows_teach_a_question_mark_only_away_from_the_limit(tokenizer: PreTrainedTokenizerBase, name: SetName) -> None:
    rule = Rule(LIMIT, margin=8)
    writer = RowWriter(tokenizer, random.Random(0), 400, name, rule, Style(single_share=0.3, wild_share=0.5))
    batch = writer.batch(20)
    assert batch.input_ids.shape == batch.labels.shape == batch.weights.shape == (20, 400)
    marks = (batch.labels == writer.unreadable) & (batch.weights == 1.0)
    ignored = batch.labels == IGNORED
    assert marks.any()
    for tokens in range(400):
        wrong = (name == "long") != (tokens > LIMIT)
        near = LIMIT - 8 < tokens <= LIMIT + 8
        assert not marks[:, tokens].any() or (wrong and not near)
        assert not ignored[:, tokens].any() or (wrong and near)
