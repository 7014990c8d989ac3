"""What reads row numbers is one of our modules, or is refused."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.mamba.linear import minimax_linear_attn

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.engine.initialize_model import check_loader, checking, require_checked
from ropeswitch.model_patches.switch.rows.position_readers import looked_up
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.switch.rows.row_numbers import RowNumbers
from ropeswitch.model_patches.switch.rows.transformers_rotary import RowsRotaryEmbedding

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
        NUMBERS.max, NUMBERS.tolist, NUMBERS.numpy, NUMBERS.data_ptr, lambda: NUMBERS + 1, lambda: NUMBERS[0],
        lambda: NUMBERS[1:] + 1, lambda: torch.cat((NUMBERS, NUMBERS)), lambda: nn.Embedding(COUNT, 2)(NUMBERS),
        lambda: torch.rand(COUNT, 2)[NUMBERS], lambda: torch.ops.aten.add.Tensor(NUMBERS, 1),
        lambda: torch.tensor(NUMBERS), lambda: torch.vmap(lambda number: number + 1)(NUMBERS),
    ],
)  # fmt: skip
def test_nothing_else_does(read: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError, match=r"model: .* reads positions outside a rotary module"):
        read()


@pytest.mark.parametrize(
    ("read", "allowed"), [(lambda numbers: looked_up(torch.rand(COUNT), numbers[:2]), True), (torch.max, False)]
)
def test_the_operator_of_linear_attention_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[torch.Tensor], object], allowed: bool
) -> None:
    layer = SimpleNamespace(_forward=lambda hidden_states, output, positions: read(positions))
    context = SimpleNamespace(no_compile_layers={"layer": layer})
    monkeypatch.setattr(minimax_linear_attn, "get_forward_context", lambda: context)
    refused = pytest.raises(UnsupportedError, match="reads positions outside a rotary module")
    with nullcontext() if allowed else refused:
        torch.ops.vllm.linear_attention(torch.zeros(2, 1), torch.zeros(2, 1), NUMBERS, "layer")


def test_compiled_code_and_torchscript_do_not_either() -> None:
    message = "reads positions outside a rotary module"
    with torch.compiler.set_stance("force_eager"), pytest.raises(UnsupportedError, match=message):
        torch.compile(lambda numbers: numbers + 1)(NUMBERS)
    # TorchScript hides the error in one of its own.
    with pytest.raises(RuntimeError, match="failed in the TorchScript interpreter"):
        torch.jit.trace(lambda numbers: numbers + 1, torch.arange(COUNT))(NUMBERS)


def test_axes_of_row_numbers() -> None:
    module = LadderRotaryEmbedding(WIDTH, Rotation(1e4, WIDTH, axes=(0, 1, 2, 0)), neox=True)
    module.rows = torch.rand(COUNT, WIDTH)
    numbers = torch.arange(COUNT).expand(3, -1)
    query = torch.rand(COUNT, 2 * WIDTH)
    found, _ = module(numbers.as_subclass(RowNumbers), query)
    expected, _ = module(numbers, query)
    assert type(found) is torch.Tensor and torch.equal(found, expected)


def test_an_attribute_that_a_ladder_s_module_lacks() -> None:
    """Read while a model is built, or in its first forward."""

    def build(vllm_config: Any) -> nn.Module:
        return LadderRotaryEmbedding(WIDTH, Rotation(1e4, WIDTH), neox=True).inv_freq

    settings = RopeSettings(FactorLadder.checked([{"name": "all", "max_length": 64, "factors": [1.0] * 4}]), 1e4)
    target = SimpleNamespace(runner_type="generate")
    config = SimpleNamespace(additional_config={KEY: settings.to_json()}, model_config=target)
    with pytest.raises(UnsupportedError, match="model: reads inv_freq of a rotary module by itself"):
        checking(build)(config)


@pytest.mark.parametrize("load_format", ["tensorizer", "ipc_cache", "modelexpress"])
def test_a_loader_that_builds_models_unchecked_is_refused(load_format: str) -> None:
    """Before it reads weights."""
    for checked in ("auto", "dummy", "runai_streamer", "sharded_state", "of a plugin"):
        check_loader(checked)
    with pytest.raises(UnsupportedError, match=f"load_format: '{load_format}' builds models where what reads"):
        check_loader(load_format)


def test_a_model_that_was_not_checked_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="load_format: 'tensorizer' builds models where what reads positions"):
        require_checked(nn.Linear(2, 2), "tensorizer")
