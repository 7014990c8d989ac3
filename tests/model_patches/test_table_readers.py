"""Layers that read a rotary module's table themselves: which may, and what they get."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.rows import row_numbers, table_readers
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from tests.fresh_process import check_cases


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary_emb = LadderRotaryEmbedding(8, Rotation(10000.0, 8), neox=True)


def test_only_a_listed_layer_gets_the_rows_as_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Attention()
    table_readers.give_tables(layer)
    with pytest.raises(UnsupportedError, match="reads cos_sin_cache by itself"):
        _ = layer.rotary_emb.cos_sin_cache
    monkeypatch.setattr(table_readers, "LAYERS", {f"{__name__}.Attention"})
    table_readers.give_tables(layer)
    assert layer.rotary_emb.cos_sin_cache is layer.rotary_emb.rows


def test_a_listed_layer_must_get_the_positions_of_all_tokens() -> None:
    hidden = torch.ones(8, 4)
    numbers = torch.arange(8).as_subclass(row_numbers.RowNumbers)
    assert torch.equal(row_numbers._attention(numbers, hidden), torch.zeros(8, 4))
    for other in (numbers[:7], torch.arange(8)):
        with pytest.raises(UnsupportedError, match="gives sparse attention other positions"):
            row_numbers._attention(other, hidden)


@pytest.mark.full
def test_upstreams_kernels_read_nothing_but_the_row_of_each_token() -> None:
    """DeepSeek V3.2's and Qwen 4's, which have no CPU build."""
    variables = {"VLLM_USE_V2_MODEL_RUNNER": "1", "ROPESWITCH_TEST_ASYNC": "0", "ROPESWITCH_TEST_TRITON": "0"}
    flags = ["-p", "tests.exactness.interpreted"]
    files = [Path(__file__).with_name(f"{name}_cases.py") for name in ("table", "group")]
    check_cases(*files, at_least=4, flags=flags, variables=variables)
