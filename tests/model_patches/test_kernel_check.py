"""A device that rotates wrongly is refused, with the op and the error."""

import pytest
import torch

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.apply_rows import apply_rows
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.model_patches.guard.kernel_check import check_rotation, check_rows, sample_positions
from ropeswitch.model_patches.switch.config.settings import UnsupportedError

THETA, END = 10000.0, 2_097_152
SETS = (Frequencies((1.0,) * 16), Frequencies(tuple(1.0 + i for i in range(16)), scale=1.4, start_tokens=100))


def filled(index: int) -> tuple[torch.Tensor, list[int]]:
    places = sample_positions(END, SETS[index].start_tokens)
    rows = torch.empty(len(places), 32)
    ExactRows(build_tables(THETA, 32, SETS, END)).fill(rows, torch.tensor(places), torch.full((len(places),), index))
    return rows, places


def test_places() -> None:
    assert sample_positions(END, 100) == [0, 1, 99, 100, 4095, 4096, END // 2, END - 1]
    assert sample_positions(1, 0) == [0]


@pytest.mark.parametrize("index", [0, 1])
def test_rows(index: int) -> None:
    rows, places = filled(index)
    check_rows(rows, places, index, THETA, SETS)
    with pytest.raises(UnsupportedError, match="device: cpu: fill_rows is off by"):
        check_rows(rows, places, 1 - index, THETA, SETS)
    rows[3, 5] = torch.nan
    with pytest.raises(UnsupportedError, match="fill_rows is off by nan"):
        check_rows(rows, places, index, THETA, SETS)


@pytest.mark.parametrize("neox", [True, False])
def test_rotation(neox: bool) -> None:
    rows, _ = filled(0)
    before = torch.randn(len(rows), 2 * 48, generator=torch.Generator().manual_seed(0))
    after = apply_rows(rows, before, None, 48, neox)[0]
    check_rotation(rows, before, after, 48, neox)
    other, moved = (apply_rows(*given)[0] for given in (
        (rows, before, None, 48, not neox), (rows.flip(0), before, None, 48, neox),
    ))  # fmt: skip
    for wrong in (before, other, moved):
        with pytest.raises(UnsupportedError, match="apply_rows is off by"):
            check_rotation(rows, before, wrong, 48, neox)
