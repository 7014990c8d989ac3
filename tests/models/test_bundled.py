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

MOST_BYTES = 10 << 20
LADDER = file.load(BUNDLED_FACTORS).ladder


def test_its_files_are_small_and_agree() -> None:
    files = [path for path in Path(BUNDLED_MODEL).iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert [each.max_length for each in LADDER.sets] == [512, 1024, 32768, 262144]
    assert all(each.scale == pytest.approx(2**0.5) for each in LADDER.sets)
    own = ladder_from_config(json.loads((BUNDLED_MODEL / "config.json").read_text()))
    assert own is not None and own.max_length == LADDER.max_length
    assert [each.factors for each in own.sets] == [LADDER.sets[1].factors, LADDER.sets[-1].factors]
    generation = json.loads((BUNDLED_MODEL / "generation_config.json").read_text())
    assert generation["max_new_tokens"] == 512
    vocabulary = json.loads((BUNDLED_MODEL / "config.json").read_text())["vocab_size"]
    assert f"a vocabulary of {vocabulary:,} tokens" in (BUNDLED_MODEL.parent / "README.md").read_text()


@pytest.mark.parametrize("number", range(3))
def test_each_set_finds_a_key_at_its_lengths(number: int) -> None:
    """Exact rotation as the server has it; the longest set is for engines and `make test-full`."""
    model, tokenizer = LocalModel.load(BUNDLED_MODEL), AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    pieces = (6, 15, 60)[number]
    ids = tokenizer.encode(f"{OPENING}\n{FILLER * pieces}\n{statement('48213')}\n{FILLER * pieces}\n{QUESTION}")
    assert LADDER.index_for(len(ids) + 8) == number
    [reply] = model.generate(torch.tensor([ids]), LADDER.sets[number], 8)
    assert tokenizer.decode(reply).startswith(" 48213")
