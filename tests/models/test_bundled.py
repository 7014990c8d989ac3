"""The bundled model finds a key at the lengths of each factor set, and its files agree."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from ropeswitch.factors import file
from ropeswitch.factors.evaluate.passkey import FILLER, OPENING, QUESTION, statement
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL

LADDER = file.load(BUNDLED_FACTORS).ladder


def test_its_files_are_small_and_agree() -> None:
    assert sum(path.stat().st_size for path in BUNDLED_MODEL.iterdir() if path.is_file()) < 10 << 20
    own = ladder_from_config(json.loads((BUNDLED_MODEL / "config.json").read_text()))
    assert own is not None and own.max_length == LADDER.max_length
    assert [each.factors for each in own.sets] == [LADDER.sets[1].factors, LADDER.sets[-1].factors]


@pytest.mark.parametrize("number", range(3))
def test_each_set_finds_a_key_at_its_lengths(number: int) -> None:
    """Exact rotation as the server has it; the longest set is for engines and `make test-full`."""
    model, tokenizer = LocalModel.load(BUNDLED_MODEL), AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    pieces = (6, 15, 60)[number]
    ids = tokenizer.encode(f"{OPENING}\n{FILLER * pieces}\n{statement('48213')}\n{FILLER * pieces}\n{QUESTION}")
    assert LADDER.index_for(len(ids) + 8) == number
    [reply] = model.generate(torch.tensor([ids]), LADDER.sets[number], 8)
    assert tokenizer.decode(reply).startswith(" 48213")
