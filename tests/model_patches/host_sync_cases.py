"""What a step does on a GPU before the forward never has the host wait, whatever forms the angles."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from vllm.utils.torch_utils import async_tensor_h2d

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.drafts.draft_rotary import DraftRotaryEmbedding
from ropeswitch.model_patches.switch.drafts.draft_sets import DraftSets
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.switch.rows.softmax_scales import SoftmaxScales
from ropeswitch.model_patches.switch.rows.step_rows import StepRows
from tests.model_patches.host_syncs import DEVICE, HostSyncError, no_host_syncs

THETA, WIDTH, END, MOST = 10000.0, 16, 4096, 64
LADDER = FactorLadder.checked(
    [
        {"name": "short", "max_length": 100, "factors": [1.0] * 8},
        {"name": "long", "max_length": END, "factors": [1.5 + i for i in range(8)], "scale": 1.2, "start_tokens": 20},
    ]
)
ROTATIONS = {
    "ladder": (Rotation(THETA, WIDTH),),
    "ladder and local": (Rotation(THETA, WIDTH), Rotation(100.0, WIDTH, laddered=False)),
    "M-RoPE": (Rotation(THETA, WIDTH, axes=(0, 1, 2, 0, 1, 2, 0, 1)),),
}


@pytest.mark.parametrize("rotations", ROTATIONS.values(), ids=ROTATIONS)
@pytest.mark.parametrize("angles", ["exact", "hf"])
def test_a_step(angles: str, rotations: tuple[Rotation, ...]) -> None:
    """Rows, true positions, softmax scales and the rotation itself; ``exact`` as without the part ``triton``."""
    step_rows = StepRows(RopeSettings(LADDER, THETA, angles, parts=()), END, MOST, DEVICE)
    modules = [LadderRotaryEmbedding(WIDTH, each, True).to(DEVICE) for each in rotations]
    step_rows.bind(nn.Sequential(*modules))
    step_rows.positions = torch.zeros(MOST, dtype=torch.int64, device=DEVICE)
    step_rows.softmax = SoftmaxScales(LADDER, MOST, DEVICE)
    positions = torch.zeros(30, dtype=torch.int64, device=DEVICE)
    starts = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    query = torch.zeros(30, 2 * WIDTH, device=DEVICE, dtype=torch.bfloat16)
    with no_host_syncs():
        step_rows.fill(positions, np.array([0, 1, 0]), starts)
        step_rows.fill(positions.expand(3, -1), np.array([1, 1, 0]), starts)
        for module in modules:
            module(step_rows.numbers[:30], query, query)


@pytest.mark.parametrize("angles", ["exact", "hf"])
def test_a_draft_model(angles: str) -> None:
    rotation, settings = ROTATIONS["ladder"][0], RopeSettings(LADDER, THETA, angles)
    with torch.device(DEVICE):
        module = DraftRotaryEmbedding(WIDTH, rotation, True, settings)
    sets = DraftSets(8, DEVICE)
    sets.bind(module)
    positions = torch.zeros(30, dtype=torch.int64, device=DEVICE)
    query = torch.zeros(30, 2 * WIDTH, device=DEVICE, dtype=torch.bfloat16)
    with no_host_syncs():
        sets.put(np.array([0, 1, 0]))
        sets.lay_out(torch.zeros(4, dtype=torch.int32, device=DEVICE))
        module(positions, query, query)


VALUES = torch.zeros(3, dtype=torch.int64, device=DEVICE)
SYNCS: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "pageable copy": (lambda: torch.from_numpy(np.arange(3)).to(DEVICE), HostSyncError),
    "asynchronous copy": (lambda: torch.from_numpy(np.arange(3)).to(DEVICE, non_blocking=True), HostSyncError),
    "pageable copy into a buffer": (lambda: VALUES.copy_(torch.arange(3), non_blocking=True), HostSyncError),
    "waiting for a copy": (lambda: VALUES.copy_(torch.empty(3, pin_memory=True)), HostSyncError),
    "a list to the device": (lambda: torch.tensor([1, 2], device=DEVICE), HostSyncError),
    "indices on the host": (lambda: VALUES[torch.tensor([1, 2])], HostSyncError),
    "a list of indices": (lambda: VALUES[[1, 2]], HostSyncError),
    "repeats without a size": (lambda: torch.repeat_interleave(VALUES, VALUES.diff()), RuntimeError),
    "a value": (lambda: VALUES[0].item(), RuntimeError),
    "a mask": (lambda: VALUES[VALUES > 1], NotImplementedError),
    "a copy to the host": (lambda: VALUES.cpu(), NotImplementedError),
}


@pytest.mark.parametrize(("sync", "error"), SYNCS.values(), ids=SYNCS)
def test_synchronisation_is_found(sync: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error), no_host_syncs():
        sync()


def test_a_pinned_copy_passes() -> None:
    with no_host_syncs():
        async_tensor_h2d(np.arange(3), device=DEVICE)
        torch.repeat_interleave(VALUES, VALUES, output_size=5)
