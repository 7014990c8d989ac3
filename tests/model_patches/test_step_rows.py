"""The rows of a step take other factors under the same names, and nothing else of another ladder."""

from dataclasses import replace

import pytest
import torch

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.model_patches.switch.step_rows import StepRows

SHORT, LONG = FactorSet("short", 64, (1.0, 2.0)), FactorSet("long", 128, (3.0, 4.0), 1.5, 2)
SETTINGS = RopeSettings(FactorLadder((SHORT, LONG)), 10000.0)


@pytest.fixture
def rows() -> StepRows:
    return StepRows(SETTINGS, 128, 8, torch.device("cpu"))


def filled(rows: StepRows) -> torch.Tensor:
    """The rows of positions 0 to 7 with the set ``long``."""
    rows.fill(torch.arange(8), torch.ones(1, dtype=torch.int64).numpy(), torch.tensor([0, 8], dtype=torch.int32))
    return rows.rows.clone()


def test_factors_scales_and_start_tokens_are_replaced(rows: StepRows) -> None:
    other = replace(SETTINGS, ladder=FactorLadder((SHORT, FactorSet("long", 128, (5.0, 6.0), 1.1, 0))))
    before = filled(rows)
    rows.replace(other)
    assert torch.equal(filled(rows), filled(StepRows(other, 128, 8, torch.device("cpu"))))
    assert not torch.equal(filled(rows), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (replace(SETTINGS, theta=500000.0), "theta: 500000.0 must be 10000.0"),
        (replace(SETTINGS, angles="hf"), "angles: 'hf' must be 'exact'"),
        (
            replace(SETTINGS, ladder=FactorLadder((SHORT, replace(LONG, max_length=256)))),
            r"sets: .*256.* must be .*128",
        ),
        (
            replace(SETTINGS, ladder=FactorLadder((SHORT, replace(LONG, name="other")))),
            "sets: .*'other'.* must be .*'long'",
        ),
        (replace(SETTINGS, ladder=FactorLadder((SHORT,))), r"sets: \(\('short', 64, 2\),\) must be "),
        (
            replace(SETTINGS, ladder=FactorLadder(tuple(replace(s, factors=(1.0,)) for s in (SHORT, LONG)))),
            "sets: .*1.* must be .*2",
        ),
    ],
)
def test_all_else_is_refused(rows: StepRows, settings: RopeSettings, message: str) -> None:
    before = filled(rows)
    with pytest.raises(ValueError, match=message):
        rows.replace(settings)
    assert torch.equal(filled(rows), before)
