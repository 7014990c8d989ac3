"""A step's rows: each token gets those of its own request's set, whichever requests are in the step."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.kernels.reference import fill_rows_reference
from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding, rotate_by_row
from ropeswitch.model_patches.switch.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.step_rows import StepRows, frequencies
from ropeswitch.model_patches.triton import part

THETA, ROTARY, END, MOST = 10000.0, 16, 4096, 64
LADDER = FactorLadder.checked(
    [
        {"name": "short", "max_length": 100, "factors": [1.0] * 8},
        {"name": "long", "max_length": END, "factors": [1.5 + i for i in range(8)], "scale": 1.2, "start_tokens": 20},
    ]
)
CPU = torch.device("cpu")


def rows_of(angles: str = "exact") -> StepRows:
    return StepRows(RopeSettings(LADDER, THETA, angles), END, MOST, CPU)


@pytest.mark.parametrize(("angles", "tolerance"), [("exact", 3e-7), ("hf", 1e-3)])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_every_token_gets_its_own_requests_set(angles: str, tolerance: float, data: st.DataObject) -> None:
    """Requests without tokens too; rows after the last request keep what they hold."""
    step_rows = rows_of(angles)
    step_rows.rows.fill_(torch.nan)
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    sets = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(lengths), max_size=len(lengths))))
    count = sum(lengths)
    positions = np.array(data.draw(st.lists(st.integers(0, END - 1), min_size=count, max_size=count)), dtype=np.int64)
    step_rows.fill(torch.from_numpy(positions), sets, torch.tensor([0, *accumulate(lengths)], dtype=torch.int32))
    expected = fill_rows_reference(
        positions, np.repeat(sets, lengths), THETA, ROTARY, frequencies(RopeSettings(LADDER, THETA))
    )
    assert not count or float((step_rows.rows[:count] - expected).abs().max()) < tolerance
    assert step_rows.rows[count:].isnan().all()


def test_a_model_gets_the_rows_and_torchs_rotation() -> None:
    step_rows, module = rows_of(), LadderRotaryEmbedding(ROTARY, ROTARY, True)
    step_rows.bind(torch.nn.Sequential(module))
    assert module.rows is step_rows.rows and module.rotate is rotate_by_row
    with pytest.raises(UnsupportedError, match="model: has no rotary embedding"):
        step_rows.bind(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_triton_is_for_devices_that_it_compiles_for() -> None:
    """On those, tests/exactness/test_runners.py runs it, interpreted."""
    assert part.kernels(CPU) is None
