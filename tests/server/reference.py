"""The sets of the tests' checkpoint, for a comparison of a server with Hugging Face."""

import json
from pathlib import Path

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config

SETS = ("short", "long")
# The checkpoint's end of text (tests/server/checkpoint.py).
EOS = 2


def ladder_of(checkpoint: Path) -> FactorLadder:
    ladder = ladder_from_config(json.loads((checkpoint / "config.json").read_text()))
    assert ladder is not None and ladder.names == SETS
    return ladder
