"""The bundled model's files and what its sets are good for."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from ropeswitch.factors import file
from ropeswitch.factors.evaluate.passkey import FILLER, OPENING, QUESTION, statement
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.models.miniature import experiments, stages
from ropeswitch.models.miniature.recipe import FULL, full
from ropeswitch.models.miniature.shape import base_config
from ropeswitch.models.miniature.tokenizer import build_tokenizer

MOST_BYTES = 10 << 20
LADDER = file.load(BUNDLED_FACTORS).ladder


def test_its_files_are_small_and_the_recipe_s() -> None:
    files = [path for path in Path(BUNDLED_MODEL).iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    window = FULL.window
    assert [each.max_length for each in LADDER.sets] == [window, 2 * window, 64 * window, 512 * window]
    assert all(each.scale == FULL.scale for each in LADDER.sets)
    own = ladder_from_config(json.loads((BUNDLED_MODEL / "config.json").read_text()))
    assert own is not None and own.max_length == LADDER.max_length
    assert [each.factors for each in own.sets] == [LADDER.sets[1].factors, LADDER.sets[-1].factors]
    made = build_tokenizer(LADDER.max_length).backend_tokenizer.to_str()
    assert json.loads(made) == json.loads((BUNDLED_MODEL / "tokenizer.json").read_text())
    generation = json.loads((BUNDLED_MODEL / "generation_config.json").read_text())
    assert generation["max_new_tokens"] == stages.MAX_NEW_TOKENS
    vocabulary = json.loads((BUNDLED_MODEL / "config.json").read_text())["vocab_size"]
    assert f"a vocabulary of {vocabulary:,} tokens" in (BUNDLED_MODEL.parent / "README.md").read_text()


def test_a_window_of_4096_reaches_the_paper_s_lengths() -> None:
    recipe = full(4096)
    assert [each.length for each in recipe.searches] == [131072, 262144]
    assert [each.length for each in recipe.recoveries] == [4096, 8192]
    assert recipe.second.length == 2097152
    assert {layout.span for stage in recipe.tuning for layout in stage.layouts} == {0, 131072, 262144}
    measured = {length for group in experiments.full(4096).groups for length in group.lengths}
    assert measured == {4096 << power for power in range(10)} | {end - 16 for end in (4096, 8192, 262144, 2097152)}
    assert experiments.full(4096).untuned.length == 8 * 4096
    config = base_config(build_tokenizer(2097152), 4096)
    assert config.max_position_embeddings == 4096


@pytest.mark.parametrize("number", range(3))
def test_each_set_finds_a_key_at_its_lengths(number: int) -> None:
    """Exact rotation as the server has it; the longest set is for engines and `make test-full`."""
    model, tokenizer = LocalModel.load(BUNDLED_MODEL), AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    pieces = (6, 15, 60)[number]
    ids = tokenizer.encode(f"{OPENING}\n{FILLER * pieces}\n{statement('48213')}\n{FILLER * pieces}\n{QUESTION}")
    assert LADDER.index_for(len(ids) + 8) == number
    [reply] = model.generate(torch.tensor([ids]), [LADDER.sets[number]], 8)
    assert tokenizer.decode(reply).startswith(" 48213")
