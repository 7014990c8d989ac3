"""Chooses the set of every rung, from the longest to the shortest, and makes the ladder."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.evaluate.statistics import paired_ratio
from ropeswitch.factors.factor_set import FactorLadder, FactorSet, LayerFactors
from ropeswitch.factors.kept import Kept
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.rules.lengths import length_name
from ropeswitch.factors.tune.learn import SIZES, learn
from ropeswitch.factors.tune.measure import CHOOSE, CONFIRM, LEARN, NEVER, STOP, Losses, Measurer, Texts
from ropeswitch.factors.tune.shelf import BY_LAYER, LEARNED, Candidate, automatic_set, shelf

# A candidate this much worse than the best on each of the first documents, in nats, is not measured on the others.
LOST = 0.01
FEW = 2
# The most sets that other documents may refute before the automatic ladder's stays.
TRIED = 3


@dataclass(frozen=True)
class Settings:
    """Lengths of the rungs; the most documents to choose and to confirm by; pass keys; the most steps to learn; the seed.

    ``by_layer``: whether to learn a list of factors for each layer too, at the shortest rung.
    """

    rungs: tuple[int, ...]
    documents: int
    tries: int
    steps: int
    seed: int
    by_layer: bool = False


@dataclass(frozen=True)
class Compared:
    """A candidate's perplexity as a ratio to the automatic ladder's on the same documents, with its 95% interval."""

    source: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Confirmed:
    """A set on the documents to confirm by: its ratios beyond the window and of all tokens, and the pass keys found."""

    beyond: Compared
    whole: Compared
    documents: int
    tries: int
    keys: int
    automatic_keys: int

    @property
    def is_worse(self) -> bool:
        """Whether the automatic ladder's set is better in any of these."""
        return self.beyond.ratio > 1 or self.whole.ratio > 1 or self.keys < self.automatic_keys


@dataclass(frozen=True)
class Rung:
    """What was measured at one length, and the set that it led to.

    ``compared`` are the candidates that were measured on all documents to choose by, ``lost`` those on the first only.
    ``refuted`` are the simplest sets that none of the others beat, which other documents did not confirm.
    """

    length: int
    chosen: Candidate
    compared: tuple[Compared, ...]
    lost: tuple[str, ...]
    confirmed: Confirmed
    refuted: tuple[Confirmed, ...]


def check_texts(texts: Texts, settings: Settings) -> None:
    """Check that there are documents and pass-key prompts for every rung; a FactorError says what is missing."""
    for length in settings.rungs:
        for part in (CHOOSE, CONFIRM, *((LEARN, STOP) if settings.steps else ())):
            texts.of(part, length, settings.documents)
        if settings.tries:
            texts.question(length, 0)


class Tuner:
    """Tunes the ladder of a model against ``automatic``; ``given`` are the user's own candidates."""

    def __init__(
        self,
        model: LocalModel,
        automatic: FactorLadder,
        texts: Texts,
        kept: Kept,
        settings: Settings,
        given: Sequence[FactorSet] = (),
    ) -> None:
        self._model, self._automatic, self._texts, self._kept = model, automatic, texts, kept
        self._settings, self._given = settings, given
        self._window = automatic.sets[0].max_length
        # What was learned by layer.
        self._learned: FactorSet | None = None
        self._measure = Measurer(model, texts, kept, self._window, lambda tokens: self._bar.update(tokens))

    def run(self) -> list[Rung]:
        """Return the rungs by increasing length."""
        rungs, found = self._settings.rungs, list[Rung]()
        planned = {length: self._tokens(length) for length in rungs}
        by_layer = self._settings.by_layer and self._settings.steps > 0
        total = sum(planned.values()) + by_layer * (self._tokens(rungs[0]) + self._tokens_to_learn(rungs[0]))
        with tqdm(total=total, unit="tok", unit_scale=True, file=sys.stderr) as self._bar:
            if by_layer:
                self._bar.set_description(f"{length_name(rungs[0])} by layer")
                self._learned = self._learn_by_layer(rungs[0])
                self._bar.total = self._bar.n + sum(planned.values())
            for length in reversed(rungs):
                self._bar.set_description(length_name(length))
                found.append(self._rung(length, found[-1].chosen.factor_set if found else None))
                # Candidates that lost early, and learning that stopped early, leave less to do than was planned.
                del planned[length]
                self._bar.total = self._bar.n + sum(planned.values())
        return found[::-1]

    def _tokens(self, length: int) -> int:
        """Return the most tokens of a rung's passes; a backward pass counts as two."""
        asked = self._settings
        candidates = len(shelf(self._model.rope, self._automatic, length, given=self._given)) + 3
        choosing = candidates * (FEW + asked.documents) + 2 * (asked.documents + asked.tries)
        return length * choosing + self._tokens_to_learn(length)

    def _tokens_to_learn(self, length: int) -> int:
        asked, stop = self._settings, max(2, self._settings.documents // 2)
        return length * (stop + asked.steps * (3 * asked.documents + len(SIZES) * stop))

    def _learn_by_layer(self, length: int) -> FactorSet:
        found, _ = self._measured(length)
        best = min(found, key=lambda each: (bool(each.factor_set.layers), sum(found[each].beyond)))
        return self._learn(best.factor_set, length, len(self._model.model.base_model.layers))

    def _rung(self, length: int, following: FactorSet | None) -> Rung:
        own = automatic_set(self._automatic, length).rotates
        found, lost = self._measured(length, following)
        automatic = next(each for each in found if each.factor_set.rotates == own)
        compared = tuple(_compared(each.source, found[each].beyond, found[automatic].beyond) for each in found)
        left, refuted = dict(found), list[Confirmed]()
        while True:
            chosen = _simplest(left) if len(refuted) < TRIED else automatic
            confirmed = self._confirm(chosen, automatic, length)
            if not confirmed.is_worse:
                return Rung(length, chosen, compared, lost, confirmed, tuple(refuted))
            refuted.append(confirmed)
            del left[chosen]

    def _measured(
        self, length: int, following: FactorSet | None = None
    ) -> tuple[dict[Candidate, Losses], tuple[str, ...]]:
        """Return the losses of the candidates that may be the best, and of what is learned, and the others' sources."""
        candidates = shelf(self._model.rope, self._automatic, length, following, self._given)
        own = automatic_set(self._automatic, length).rotates
        documents = self._texts.of(CHOOSE, length, self._settings.documents)
        few = {each: self._measure.losses(each.factor_set, documents[:FEW]).beyond for each in candidates}
        best = min(few.values(), key=sum)
        lost = {each for each, losses in few.items() if all(a > b + LOST for a, b in zip(losses, best, strict=True))}
        lost = {each for each in lost if each.factor_set.rotates != own}
        found = {each: self._measure.losses(each.factor_set, documents) for each in candidates if each not in lost}
        for source in (LEARNED, BY_LAYER) if self._settings.steps else ():
            start = min(found, key=lambda each: (bool(each.factor_set.layers), sum(found[each].beyond))).factor_set
            by_layer = self._learned and carried(self._learned, start)
            made = self._learn(start, length, 1) if source == LEARNED else by_layer
            if made is not None and made.rotates not in [each.factor_set.rotates for each in found]:
                found[Candidate(source, made)] = self._measure.losses(made, documents)
        lost |= {each for each, losses in found.items() if NEVER in losses.beyond and each.factor_set.rotates != own}
        found = {each: losses for each, losses in found.items() if each not in lost}
        return found, tuple(each.source for each in candidates if each in lost)

    def _confirm(self, chosen: Candidate, automatic: Candidate, length: int) -> Confirmed:
        documents = self._texts.of(CONFIRM, length, self._settings.documents)
        ours, theirs = (self._measure.losses(each.factor_set, documents) for each in (chosen, automatic))
        tries = self._settings.tries
        keys = [self._measure.keys(each.factor_set, length, tries) for each in (chosen, automatic)]
        beyond = _compared(chosen.source, ours.beyond, theirs.beyond)
        return Confirmed(beyond, _compared(chosen.source, ours.all, theirs.all), len(documents), tries, *keys)

    def _learn(self, start: FactorSet, length: int, layers: int) -> FactorSet:
        asked = self._settings
        stop = self._texts.of(STOP, length, max(2, asked.documents // 2))
        documents = self._texts.of(LEARN, length, asked.documents)

        def judge(made: FactorSet) -> float:
            return sum(self._measure.losses(made, stop).beyond)

        passed = self._bar.update
        return learn(self._model, start, layers, documents, self._window, asked.steps, judge, self._kept, passed)


def carried(learned: FactorSet, to: FactorSet) -> FactorSet:
    """Return a set of one list with the layers of ``learned``, each as far from the list as theirs are from their own."""

    def moved(layer: LayerFactors) -> LayerFactors:
        each = zip(layer.factors, to.factors, learned.factors, strict=True)
        return LayerFactors(
            tuple(own * (now / then) for own, now, then in each), layer.scale * (to.scale / learned.scale)
        )

    return replace(to, layers=tuple(map(moved, learned.layers)))


def _compared(source: str, ours: Sequence[float], theirs: Sequence[float]) -> Compared:
    if NEVER in theirs:
        raise FactorError("--ladder: a loss of its set is not finite on these texts; use another --dtype")
    return Compared(source, *paired_ratio(ours, theirs))


def _simplest(found: dict[Candidate, Losses]) -> Candidate:
    """Return the first candidate that no other beats: whose ratio to it has an interval below 1."""
    return next(
        each
        for each, losses in found.items()
        if not any(paired_ratio(other.beyond, losses.beyond)[2] < 1 for other in found.values() if other is not losses)
    )


def ladder_of(rungs: Sequence[Rung], native: FactorSet) -> FactorLadder:
    """Return the ladder of a model's window and the chosen sets; neighbours that rotate alike become one set."""
    sets = [native]
    for each in (rung.chosen.factor_set for rung in rungs):
        if replace(each, name="", max_length=0) != replace(sets[-1], name="", max_length=0):
            sets.append(each)
        else:
            sets[-1] = each if len(sets) > 1 else replace(native, max_length=each.max_length)
    return FactorLadder.checked(FactorLadder(tuple(sets)).to_json())
