"""What reads row numbers is one of our modules, or is refused."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from vllm.model_executor.models.moondream3 import Moondream3Attention
from vllm.model_executor.models.voxtral_realtime import VoxtralRealtimeGeneration

from ropeswitch.model_patches.switch.initialize_model import require_checked
from ropeswitch.model_patches.switch.rotation import Rotation
from ropeswitch.model_patches.switch.row_numbers import RowNumbers
from ropeswitch.model_patches.switch.settings import UnsupportedError
from ropeswitch.model_patches.switch.transformers_rotary import RowsRotaryEmbedding

COUNT, WIDTH = 6, 8
NUMBERS = torch.arange(COUNT).as_subclass(RowNumbers)


def test_rotary_modules_read_them() -> None:
    module = RowsRotaryEmbedding(Rotation(1e4, WIDTH), torch.rand(COUNT, WIDTH), "once", True)
    numbers = torch.arange(COUNT)[None].as_subclass(RowNumbers)
    cos, _ = module(torch.zeros(1), numbers)
    assert type(cos) is torch.Tensor and numbers.shape == (1, COUNT) and numbers.ndim == 2


@pytest.mark.parametrize(
    "read",
    [
        lambda: NUMBERS + 1,
        NUMBERS.max,
        lambda: NUMBERS[0],
        lambda: torch.cat((NUMBERS, NUMBERS)),
        lambda: nn.Embedding(COUNT, 2)(NUMBERS),
    ],
)
def test_nothing_else_does(read: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError, match=r"model: .* reads positions outside a rotary module"):
        read()


def test_a_wrapper_that_gives_them_to_its_encoder_is_found() -> None:
    """Voxtral Realtime rotates sounds by the text's positions."""
    model = SimpleNamespace(config=SimpleNamespace(audio_config=SimpleNamespace(block_pool_size=2)))
    with pytest.raises(UnsupportedError, match="model: _expand_tensor reads positions outside a rotary module"):
        VoxtralRealtimeGeneration.forward(
            model, torch.zeros(COUNT), NUMBERS, inputs_embeds=torch.zeros(COUNT, 2 * WIDTH)
        )


def test_attention_scaled_by_position_is_found() -> None:
    """Moondream 3's."""
    layer = SimpleNamespace(
        num_heads_per_partition=1, num_kv_heads_per_partition=1, head_dim=WIDTH, tp_size=1,
        qkv_proj=lambda hidden: (hidden, None), tau_wq=torch.zeros(1, 3 * WIDTH), tau_wv=torch.zeros(1, 3 * WIDTH),
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"model: Moondream3Attention.forward reads positions outside"):
        Moondream3Attention.forward(layer, NUMBERS, torch.zeros(COUNT, 3 * WIDTH))


def test_a_model_that_was_not_checked_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="load_format: 'tensorizer' builds models where what reads positions"):
        require_checked(nn.Linear(2, 2), "tensorizer")
