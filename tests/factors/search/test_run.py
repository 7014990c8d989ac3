"""A search and its files: killed and resumed, on a full disk, beside another search's checkpoint, with NaN losses."""

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.search.plan import Plan
from ropeswitch.factors.search.run import Result, search
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Space

SPACE = Space(pairs=8, upper=500)
PLAN = Plan(SPACE, tuple(SPACE.nearest((factor,) * 8) for factor in (4.0, 2.0, 1.0)), None, 1.1)
SETTINGS = SearchSettings(1024, population=16, mutations=4, crossovers=4, parents=8, iterations=6)
PLANTED = np.linspace(1.3, 3.9, 8)


class Synthetic:
    """Counts what it evaluates; ``then`` sees the count before each."""

    def __init__(self, then: Callable[[int], None] = lambda _: None) -> None:
        self.count, self.then = 0, then

    def __call__(self, each: FactorSet) -> float:
        self.then(self.count)
        self.count += 1
        return 2.0 + float(np.square(np.subtract(each.factors, PLANTED)).mean()) + each.start_tokens / 7e3


Whole = tuple[Path, Result, int]


def run(
    path: Path, evaluate: Callable[[FactorSet], float], settings: SearchSettings = SETTINGS, model: str = "m"
) -> Result:
    return search(PLAN, settings, evaluate, path, name="1k", theta=1e4, about={"model": model})


def found(path: Path) -> list[float]:
    """The perplexities in a checkpoint, in order."""
    return [json.loads(line)["found"] for line in path.read_text().splitlines()[1:]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.checkpoint.jsonl"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An uninterrupted search."""
    path, evaluator = tmp_path_factory.mktemp("whole") / "whole.checkpoint.jsonl", Synthetic()
    return path, run(path, evaluator), evaluator.count


def test_killed_and_resumed(whole: Whole, path: Path) -> None:
    """SIGKILL at several moments: the checkpoint and the result end byte for byte as if nothing had been."""
    expected, result, evaluations = whole
    kills = (15, 39)
    for at in kills:
        if not (child := os.fork()):
            run(
                path, Synthetic(then=lambda count, at=at: os.kill(os.getpid(), signal.SIGKILL) if count >= at else None)
            )
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    evaluator = Synthetic()
    assert run(path, evaluator) == result
    # What stands in the checkpoint is not evaluated again.
    assert evaluator.count == evaluations - sum(kills)
    assert path.read_bytes() == expected.read_bytes()
    done = Synthetic()
    assert run(path, done) == result and done.count == 0
    # The best candidate is the result.
    scores = found(path)
    assert min(scores) == result.perplexity == Synthetic()(result.factor_set) and len(scores) == SETTINGS.evaluations
    assert (result.factor_set.name, result.factor_set.max_length, result.factor_set.scale) == ("1k", 1024, 1.1)


@pytest.mark.parametrize("first", [2, 9])
def test_other_numbers_of_iterations_go_on(whole: Whole, path: Path, first: int) -> None:
    """After 2 or 9 iterations the same command with 6 ends as one that ran 6 alone; only what it needs is evaluated."""
    expected, result, evaluations = whole
    before, after = Synthetic(), Synthetic()
    run(path, before, replace(SETTINGS, iterations=first))
    assert run(path, after) == result
    assert after.count == max(0, evaluations - before.count)
    if first < SETTINGS.iterations:
        assert path.read_bytes() == expected.read_bytes()


def test_another_searchs_checkpoint_is_left_alone_before_anything_is_evaluated(whole: Whole, path: Path) -> None:
    evaluator, before = Synthetic(), whole[0].read_bytes()
    with pytest.raises(FactorError, match="seed: it was made with 0, but this run has 1"):
        run(whole[0], evaluator, replace(SETTINGS, seed=1))
    with pytest.raises(FactorError, match="model: it was made with 'm', but this run has 'other'"):
        run(whole[0], evaluator, model="other")
    assert whole[0].read_bytes() == before
    with pytest.raises(FactorError, match=r"missing/out.checkpoint.jsonl'.*cannot be written"):
        run(path.parent / "missing" / path.name, evaluator)
    assert evaluator.count == 0


@pytest.mark.parametrize(("at", "what"), [(0, "for position interpolation already"), (20, "for a candidate")])
def test_a_perplexity_that_is_no_number(path: Path, at: int, what: str) -> None:
    """The candidate is named, and what was found before is kept."""
    evaluator = Synthetic()

    def broken(each: FactorSet) -> float:
        found = evaluator(each)
        return math.nan if evaluator.count > at else found

    named = rf"^perplexity: nan {what}.*: factors \[.*\], start_tokens \d+, scale 1.1"
    with pytest.raises(FactorError, match=named):
        run(path, broken)
    assert len(found(path)) == at and all(map(math.isfinite, found(path)))


def test_an_interrupted_search_keeps_what_it_found(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(path, Synthetic(then=Mock(side_effect=[None] * 12 + [KeyboardInterrupt])))
    assert len(found(path)) == 12
