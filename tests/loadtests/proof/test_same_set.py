"""Both servers are given the same documents, ropeswitch with the set ``32k``, and the line shows how they differ."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.evaluate.target import Window
from ropeswitch.loadtests.proof import same_set
from ropeswitch.loadtests.proof.arms import FLOAT32, OURS, STATIC, Arm
from ropeswitch.loadtests.proof.store import PERPLEXITY, Item, Measurement
from ropeswitch.models import BUNDLED_MODEL
from tests.loadtests.proof.test_measure import LENGTH, TEXTS


class Target:
    """A server whose every token has a loss of 2 nats; keeps the sets that it was asked for."""

    sets = ("switched", "original", "32k")
    opening: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.asked: list[str] = []

    def losses(self, windows: list[Window], set_name: str) -> Iterator[list[float]]:
        self.asked.append(set_name)
        return iter([[2.0] * (len(window.ids) - window.first) for window in windows])


def measured(*nats: float) -> list[Measurement]:
    return [
        Measurement(Item(PERPLEXITY, 512, f"d{number}"), tokens=100, nll=100 * each) for number, each in enumerate(nats)
    ]


@pytest.mark.parametrize(("rotation", "set_name"), [(OURS, "32k"), (STATIC, "switched")])
def test_only_ropeswitch_is_asked_for_a_set(rotation: str, set_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()

    @contextmanager
    def serving(arm: Arm, model: Path, *, chat: bool) -> Iterator[Any]:
        yield target

    monkeypatch.setattr(same_set, "serving", serving)
    found = same_set.measure(Arm(rotation, FLOAT32), BUNDLED_MODEL, TEXTS, [LENGTH], 2)
    assert [each.nll for each in found[LENGTH.tokens]] == [398.0, 398.0] and target.asked == [set_name] * 2


def test_the_line_has_the_ratio_and_the_largest_difference() -> None:
    line = same_set.compared(measured(3.0, 3.03), measured(3.0, 3.0), FLOAT32)
    # exp(0.015) - 1, and 3.03 / 3 - 1.
    assert line.startswith("512 tokens, 2 documents, float32: ") and " +1.51131%, " in line
    assert line.endswith(" 1.0e-02")


def test_documents_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="different documents"):
        same_set.compared(measured(3.0, 3.0), measured(3.0, 3.0)[::-1], FLOAT32)
