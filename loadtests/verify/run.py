"""Runs a verification: sends cases, scores the tokens of their answers whole, and compares the two."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ropeswitch.factors.errors import InputError
from ropeswitch.loadtests.verify import plan
from ropeswitch.loadtests.verify.ask import Answer, Client
from ropeswitch.loadtests.verify.plan import ALONE, ANSWER, BATCH, CACHED, Case, Ladder, Words

if TYPE_CHECKING:
    from ropeswitch.loadtests.verify.reference import Reference


class Gap(NamedTuple):
    """How far two lists of a text's log-probabilities are apart: by the largest difference of a token, and by their mean."""

    most: float
    mean: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Gap":
        return cls(max(differences), sum(differences) / len(differences))

    def within(self, other: "Gap") -> bool:
        return self.most <= other.most and self.mean <= other.mean

    def __str__(self) -> str:
        return f"{self.most:.2g} ({self.mean:.2g})"


# By dtype, the smallest tolerance and the largest: decode and prefill kernels round differently (bfloat16 logits above 16 by
# 0.125). A lone request may be off by the largest, others by TIMES the lone requests' gap.
ROUNDING = {"float32": (Gap(1e-3, 3e-4), Gap(1e-2, 1e-3)), "float16": (Gap(1e-2, 3e-3), Gap(0.2, 0.03))}
ROUNDING_OF_OTHERS, TIMES = (Gap(0.03, 0.01), Gap(1.0, 0.1)), Gap(3.0, 2.0)
# The mode of the comparison with Transformers, and its longest text, in tokens.
REFERENCE, MOST_REFERENCE = "Transformers", 4096
EXACT, DIFFERS, UNKNOWN = "exact", "DIFFERS", "cannot tell"
# Maximum batches per limit: a new one, with other text, while both sets score the last one alike.
TRIES = 5
# The rest takes about so many times as long as the lone request: around a limit that sequences cross, and any other.
CROSSED, OTHER = 7.5, 0.5


@dataclass
class Row:
    """One line of the result: all requests of one place and mode.

    Attributes:
        errors: How far each answer's log-probabilities are from those of the same tokens scored whole.
        faults: What else is wrong.
        unknown: Reasons why the row has no verdict.
    """

    limit: int
    how: str
    where: str
    errors: list[Gap] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def worst(self) -> Gap:
        return Gap(*map(max, zip(Gap(0, 0), *self.errors, strict=True)))


@dataclass
class Verification:
    """A run.

    Attributes:
        apart: By two neighbouring sets, how far they are apart for the same tokens.
        report: Prints a line of progress.
    """

    client: Client
    ladder: Ladder
    words: Words
    report: Callable[[str], None]
    rows: dict[tuple[int, str, str], Row] = field(default_factory=dict)
    apart: dict[tuple[str, str], Gap] = field(default_factory=dict)

    async def run(self, ends: Sequence[int], chats: Sequence[Case]) -> None:
        """Send every case of these limits, alone, in one batch with others, from the cache and in other sets' tracks.

        Raises:
            InputError: when the shortest lone request cannot be compared, as then no other can.
        """
        rest, lone = 0.0, list[Case]()
        for end in ends:
            self.report(f"{end:,} tokens: one request alone")
            lone.append(plan.alone(self.ladder, end, self.words))
            started = time.monotonic()
            await self._check(lone[-1])
            rest += (CROSSED if plan.crosses(self.ladder, end) else OTHER) * (time.monotonic() - started)
            first = next(iter(self.rows.values()))
            if first.unknown:
                raise InputError(first.unknown[0])
        self.report(f"the rest takes about {max(1, rest / 60):.0f} min")
        sent, unsure = dict[int, list[Case]](), lone
        async with asyncio.TaskGroup() as group:
            load = group.create_task(self.client.others(self.words, self.ladder))
            try:
                for _ in range(TRIES):
                    sent |= {each.limit: plan.around(self.ladder, each.limit, each, self.words) for each in unsure}
                    await self._phase([case for each in unsure for case in sent[each.limit]])
                    blind = filter(self.is_blind, [each.limit for each in unsure])
                    unsure = [plan.alone(self.ladder, limit, self.words) for limit in blind]
                cases = list(chain(*sent.values()))
                for each in cases:
                    await self._phase([Case(each.limit, each.where, CACHED, each.prompt)])
                for past in (case for case in cases if case.where == "one past"):
                    before, after = plan.after_another_set(self.ladder, past)
                    await self._phase([before], compared=False)
                    await self._phase([after])
                await self._phase(chats)
            finally:
                load.cancel()

    @property
    def rounding(self) -> tuple[Gap, Gap]:
        return ROUNDING.get(self.ladder.dtype, ROUNDING_OF_OTHERS)

    def tolerance(self) -> Gap:
        """Return the largest gap that rounding explains."""
        noise = Row(0, "", "", [each for row in self.rows.values() if row.how == ALONE for each in row.errors]).worst
        each = zip(self.rounding[0], TIMES, noise, self.rounding[1], strict=True)
        return Gap(*(min(max(least, times * own), most) for least, times, own, most in each))

    def allowed(self, row: Row) -> Gap:
        """Return the largest gap that is no fault in a row."""
        most, mean = self.rounding[1]
        return {ALONE: Gap(most, mean), REFERENCE: Gap(mean, mean)}.get(row.how, self.tolerance())

    def verdict(self, row: Row) -> str:
        """Return :data:`EXACT`, :data:`DIFFERS`, or :data:`UNKNOWN` where another set would have passed too."""
        if row.faults or not row.worst.within(self.allowed(row)):
            return DIFFERS
        blind = row.how not in (ALONE, REFERENCE) and self.is_blind(row.limit)
        return UNKNOWN if row.unknown or blind else EXACT

    def is_blind(self, limit: int) -> bool:
        """Whether rounding could hide the difference between the two sets at a limit."""
        return limit in self.apart_at and self.apart_at[limit].within(self.tolerance())

    @property
    def apart_at(self) -> dict[int, Gap]:
        """How far the sets on each limit's sides are apart, for the same tokens."""
        limits = {row.limit: self.ladder.beside(row.limit) for row in self.rows.values()}
        return {limit: self.apart[pair] for limit, pair in limits.items() if pair in self.apart}

    def compare(self, reference: "Reference", tokens: Sequence[int], served: dict[str, list[float]]) -> None:
        """Compare the server's scores of a text in each set with Transformers', by their mean difference."""
        found = {}
        for name in self.ladder.names:
            self.report(f"{REFERENCE}: {len(tokens):,} tokens in set {name}")
            found[name] = reference.scores(tokens, name)
        for name, end in zip(self.ladder.names, self.ladder.ends, strict=True):
            off = {each: _apart(served[name], scores).mean for each, scores in found.items()}
            row = self.rows[end, REFERENCE, name] = Row(end, REFERENCE, name, [Gap(off[name], off[name])])
            if (nearest := min(off, key=off.__getitem__)) != name and off[nearest] < off[name] / 2:
                row.faults.append(f"rotates as set {nearest!r} of {REFERENCE} does")

    async def scored(self, tokens: tuple[int, ...]) -> dict[str, list[float]]:
        """Return the server's scores of a text in each set."""
        return {name: await self.client.scores(tokens, name) for name in self.ladder.names}

    async def _phase(self, cases: Sequence[Case], *, compared: bool = True) -> None:
        if cases and compared:
            tokens = sum(len(case.prompt) for case in cases)
            self.report(f"{cases[0].how}: {len(cases)} requests, {tokens:,} prompt tokens")
        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(self._check(case) if compared else self.client.answer(case))

    async def _check(self, case: Case) -> None:
        row = self.rows.setdefault((case.limit, case.how, case.where), Row(case.limit, case.how, case.where))
        try:
            answer = await self.client.answer(case)
            if case.how == CACHED and answer.cached == 0:
                # The blocks had been evicted; this answer has refilled them.
                answer = await self.client.answer(case)
            sequence = answer.prompt + answer.tokens
            stretches = self.ladder.stretches(len(answer.prompt), case.answer, case.forced)
            off = list[float]()
            for name, lengths in stretches:
                off += _differences(answer, await self.client.scores(sequence, name), lengths)
            beside = self.ladder.beside(case.limit)
            crossed = any(
                plan.crosses(self.ladder, end) and self.ladder.beside(end) == beside for end in self.ladder.ends
            )
            if beside and case.how == BATCH and case.where == ("crossing" if crossed else "below"):
                one, other = [(await self.client.scores(sequence, name))[-ANSWER:] for name in beside]
                self.apart[beside] = _apart(one, other)
        except InputError as error:
            row.unknown.append(str(error))
            return
        row.errors.append(Gap.of(off))
        if answer.named_set not in (None, stretches[0][0]):
            row.faults.append(f"began in set {answer.named_set!r} instead of {stretches[0][0]!r}")
        if case.how == CACHED and answer.cached == 0:
            row.unknown.append("the prefix cache had nothing of the prompt")


def _apart(ones: Sequence[float], others: Sequence[float]) -> Gap:
    return Gap.of([abs(one - other) for one, other in zip(ones, others, strict=True)])


def _differences(answer: Answer, scores: Sequence[float], lengths: range) -> list[float]:
    """Return the differences of the tokens that follow sequences of these lengths."""
    prompt = len(answer.prompt)
    return [abs(answer.log_probs[length - prompt] - scores[length - 1]) for length in lengths]
