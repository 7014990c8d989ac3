"""The rows of a step take other factors under the same names, and nothing else of another ladder."""

from dataclasses import replace

import pytest
import torch

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.ladders.made import Origin
from ropeswitch.factors.search.replace_sets import ReplaceSets
from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rotation import Rotation
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.model_patches.switch.step_rows import StepRows

SHORT, LONG = FactorSet("short", 64, (1.0, 2.0)), FactorSet("long", 128, (3.0, 4.0), 1.5, 2)
SETTINGS = RopeSettings(FactorLadder((SHORT, LONG)), 10000.0)


ROTATION = Rotation(10000.0, 4)


def rows_of(settings: RopeSettings) -> StepRows:
    """The rows of a model with one rotary module."""
    rows = StepRows(settings, 128, 8, torch.device("cpu"))
    rows.bind(torch.nn.Sequential(LadderRotaryEmbedding(4, ROTATION, True)))
    return rows


class Worker(ReplaceSets):
    """As vLLM puts the extension under a worker of ours."""

    def __init__(self) -> None:
        # The engine that the search starts knows where its sets came from; the search's own settings do not.
        self.settings = replace(SETTINGS, origins=(Origin(None, "sets"), Origin(None, "sets")))
        self.step_rows = rows_of(SETTINGS)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def filled(rows: StepRows) -> torch.Tensor:
    """The rows of positions 0 to 7 with the set ``long``."""
    rows.fill(torch.arange(8), torch.ones(1, dtype=torch.int64).numpy(), torch.tensor([0, 8], dtype=torch.int32))
    return rows.by_rotation[ROTATION].rows.clone()


def test_factors_scales_and_start_tokens_are_replaced(worker: Worker) -> None:
    other = replace(SETTINGS, ladder=FactorLadder((SHORT, FactorSet("long", 128, (5.0, 6.0), 1.1, 0))))
    rows = worker.step_rows
    before = filled(rows)
    worker.replace_sets(other.to_json())
    assert torch.equal(filled(rows), filled(rows_of(other)))
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
            replace(SETTINGS, ladder=FactorLadder((SHORT, replace(LONG, softmax_scale=1.5)))),
            r"sets: .*1\.5\).* must be .*None",
        ),
        (
            replace(SETTINGS, ladder=FactorLadder((SHORT, replace(LONG, name="other")))),
            "sets: .*'other'.* must be .*'long'",
        ),
        (replace(SETTINGS, ladder=FactorLadder((SHORT,))), r"sets: \(\('short', 64, 2, None\),\) must be "),
        (
            replace(SETTINGS, ladder=FactorLadder(tuple(replace(s, factors=(1.0,)) for s in (SHORT, LONG)))),
            "sets: .*1.* must be .*2",
        ),
    ],
)
def test_all_else_is_refused(worker: Worker, settings: RopeSettings, message: str) -> None:
    before = filled(worker.step_rows)
    with pytest.raises(ValueError, match=message):
        worker.replace_sets(settings.to_json())
    assert torch.equal(filled(worker.step_rows), before)
