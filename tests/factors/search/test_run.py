"""A search and its files: killed and resumed, on a full disk, beside another search's checkpoint, with NaN losses."""

import errno
import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ropeswitch.factors import whole_file
from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.search import checkpoint
from ropeswitch.factors.search.job import files_beside
from ropeswitch.factors.search.plan import Plan
from ropeswitch.factors.search.run import Files, Result, search
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.search.space import Space

SPACE = Space(pairs=8, upper=500)
PLAN = Plan(SPACE, tuple(SPACE.nearest((factor,) * 8) for factor in (4.0, 2.0, 1.0)), None, 1.1)
SETTINGS = SearchSettings(1024, population=16, mutations=4, crossovers=4, parents=8, iterations=6)
PLANTED = np.linspace(1.3, 3.9, 8)


class Synthetic:
    """Counts what it evaluates; ``then`` sees the count before each batch."""

    name = "synthetic"

    def __init__(self, batch: int = 3, then: Callable[[int], None] = lambda _: None) -> None:
        self.batch, self.count, self.then = batch, 0, then

    def evaluate(self, sets: Sequence[FactorSet]) -> list[float]:
        self.then(self.count)
        self.count += len(sets)
        return [self.perplexity(each) for each in sets]

    def perplexity(self, each: FactorSet) -> float:
        return 2.0 + float(np.square(np.subtract(each.factors, PLANTED)).mean()) + each.start_tokens / 7e3

    def close(self) -> None:
        """Nothing to close."""


def run(files: Files, evaluator: Synthetic, settings: SearchSettings = SETTINGS, model: str = "m") -> Result:
    return search(PLAN, settings, evaluator, files, name="1k", theta=1e4, about={"model": model})


@pytest.fixture(autouse=True)
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Result, int]:
    """An uninterrupted search."""
    files, evaluator = files_beside(tmp_path_factory.mktemp("whole") / "whole.json"), Synthetic()
    return files, run(files, evaluator), evaluator.count


def test_killed_and_resumed(whole: tuple[Files, Result, int], tmp_path: Path) -> None:
    """SIGKILL at several moments: the checkpoint, the log and the result end byte for byte as if nothing had been."""
    expected, result, evaluations = whole
    files, kills = files_beside(tmp_path / "killed.json"), (16, 40)
    for at in kills:

        def die(count: int, at: int = at) -> None:
            if count >= at:
                os.kill(os.getpid(), signal.SIGKILL)

        if not (child := os.fork()):
            run(files, Synthetic(then=die))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    evaluator = Synthetic()
    assert run(files, evaluator) == result
    # What stands in the checkpoint is not evaluated again.
    assert evaluator.count == evaluations - sum(kills)
    for there, here in (
        (files.checkpoint, expected.checkpoint),
        (files.log, expected.log),
        (files.plot, expected.plot),
    ):
        assert there.read_bytes() == here.read_bytes()
    done = Synthetic()
    assert run(files, done) == result and done.count == 0


def test_the_log_tells_every_iteration(whole: tuple[Files, Result, int]) -> None:
    files, result, evaluations = whole
    lines = [json.loads(line) for line in files.log.read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(7))
    assert lines[-1]["evaluations"] == evaluations == 16 + 6 * 8
    assert lines[-1]["best"] == result.perplexity == Synthetic().perplexity(result.factor_set)
    assert lines[-1]["factors"] == list(result.factor_set.factors)
    assert files.plot.read_bytes().startswith(b"\x89PNG")
    assert (result.factor_set.name, result.factor_set.max_length, result.factor_set.scale) == ("1k", 1024, 1.1)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search stops with one line; what was kept before is whole, and the search goes on from it."""
    files, writes, left = files_beside(tmp_path / "out.json"), os.fsync, [9]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        writes(descriptor)

    monkeypatch.setattr(whole_file.os, "fsync", full)
    with pytest.raises(FactorError, match=r"cannot be written: No space left on device"):
        run(files, Synthetic())
    monkeypatch.undo()
    kept = json.loads(files.checkpoint.read_text())["evaluated"]
    assert 3 <= len(kept) < SETTINGS.evaluations
    assert not list(tmp_path.glob(".*"))
    evaluator = Synthetic()
    run(files, evaluator)
    assert evaluator.count == SETTINGS.evaluations - len(kept)


@pytest.mark.parametrize("first", [2, 9])
def test_other_numbers_of_iterations_go_on(whole: tuple[Files, Result, int], tmp_path: Path, first: int) -> None:
    """After 2 or 9 iterations the same command with 6 ends as one that ran 6 alone; only what it needs is evaluated."""
    expected, result, evaluations = whole
    files, before, after = files_beside(tmp_path / "out.json"), Synthetic(), Synthetic()
    run(files, before, replace(SETTINGS, iterations=first))
    assert run(files, after) == result
    assert after.count == max(0, evaluations - before.count)
    assert files.log.read_bytes() == expected.log.read_bytes()
    if first < SETTINGS.iterations:
        assert files.checkpoint.read_bytes() == expected.checkpoint.read_bytes()


def test_a_folder_that_is_not_there_is_told_before_anything_is_evaluated(tmp_path: Path) -> None:
    evaluator = Synthetic()
    with pytest.raises(FactorError, match=r"missing/out.checkpoint.json'.*cannot be written"):
        run(files_beside(tmp_path / "missing" / "out.json"), evaluator)
    assert evaluator.count == 0


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        (replace(SETTINGS, seed=1), "m", "seed: it was made with 0, but this search has 1"),
        (replace(SETTINGS, length=2048), "m", "length: it was made with 1024, but this search has 2048"),
        (SETTINGS, "other", "model: it was made with 'm', but this search has 'other'"),
    ],
)
def test_another_search_s_checkpoint(
    whole: tuple[Files, Result, int], settings: SearchSettings, model: str, message: str
) -> None:
    before = whole[0].checkpoint.read_bytes()
    with pytest.raises(FactorError, match=message):
        run(whole[0], Synthetic(), settings, model)
    assert whole[0].checkpoint.read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "ropeswitch-search/1", "task": 3}', "\0"])
def test_no_checkpoint_at_all(tmp_path: Path, text: str) -> None:
    files = files_beside(tmp_path / "out.json")
    files.checkpoint.write_text(text)
    with pytest.raises(FactorError, match=r"^checkpoint "):
        run(files, Synthetic())
    assert files.checkpoint.read_text() == text


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("at", "what"), [(0, "for position interpolation already"), (20, "for a candidate")])
def test_a_perplexity_that_is_no_number(tmp_path: Path, value: float, at: int, what: str) -> None:
    """The candidate is named, and what was found before is kept."""

    class Broken(Synthetic):
        def evaluate(self, sets: Sequence[FactorSet]) -> list[float]:
            found = super().evaluate(sets)
            return [value, *found[1:]] if self.count > at else found

    files = files_beside(tmp_path / "out.json")
    with pytest.raises(
        FactorError, match=rf"^perplexity: {value} {what}.*: factors \[.*\], start_tokens \d+, scale 1.1"
    ):
        run(files, Broken())
    assert all(map(math.isfinite, (score for _, _, score in json.loads(files.checkpoint.read_text())["evaluated"])))


def test_an_interrupted_search_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 1e9)
    files = files_beside(tmp_path / "out.json")

    def interrupt(count: int) -> None:
        if count >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(files, Synthetic(then=interrupt))
    assert len(json.loads(files.checkpoint.read_text())["evaluated"]) == 12
