"""A model whose prompts attend both ways is refused: a switch makes generated tokens a part of the prompt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import HrmTextConfig, HrmTextForCausalLM

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from tests.exactness.checkpoints import SHAPE, save


def test_it_is_refused(start: Callable[..., Any], tmp_path: Path) -> None:
    shape = SHAPE | {"max_position_embeddings": 64, "num_key_value_heads": 4, "head_dim": 32}
    config = HrmTextConfig(**shape, num_layers_per_stack=1, H_cycles=1, L_cycles=1)
    folder = save(HrmTextForCausalLM, config, tmp_path, 0)
    with pytest.raises(UnsupportedError, match="PrefillPrefixLMAttention attends to prompts both ways"):
        start(folder, {"ladder": "auto"}, max_model_len=128)
