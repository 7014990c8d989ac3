"""Runs a verification: sends cases, scores the tokens of their answers whole, and compares the two."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from ropeswitch.factors.errors import InputError
from ropeswitch.loadtests.verify.ask import Answer, Client
from ropeswitch.loadtests.verify.plan import (
    ALONE,
    ANSWER,
    BATCH,
    CACHED,
    Case,
    Ladder,
    Words,
    after_another_set,
    alone,
    around,
    crosses,
)

if TYPE_CHECKING:
    from ropeswitch.loadtests.verify.reference import Reference

# In log-probability, by the server's dtype: kernels for one token and for many round differently, bfloat16 by 0.125 above
# 16. A request alone may be off by the second figure, others by TIMES as much as those are, and by the first; the mean over
# a text may differ from Transformers' by the third.
ROUNDING = {"float32": (1e-3, 1e-2, 1e-3), "float16": (1e-2, 0.2, 1e-2)}
ROUNDING_OF_OTHERS, TIMES = (0.03, 1.0, 0.1), 3.0
# The mode of the comparison with Transformers, and its longest text, in tokens.
REFERENCE, MOST_REFERENCE = "Transformers", 4096
EXACT, DIFFERS, UNKNOWN = "exact", "DIFFERS", "cannot tell"
# Batches with other words around a limit whose sets are too alike for those before.
TRIES = 5
# The rest takes about so many times as long as the lone request: around a limit that sequences cross, and any other.
CROSSED, OTHER = 7.5, 0.5


@dataclass
class Row:
    """One line of the result: all requests of one place and mode.

    Attributes:
        errors: Largest difference of an answer's log-probabilities and those of the same tokens scored whole, by answer.
        faults: What else is wrong.
        unknown: Reasons why the row has no verdict.
    """

    limit: int
    how: str
    where: str
    errors: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.errors, default=0.0)


@dataclass
class Verification:
    """A run.

    Attributes:
        apart: By two neighbouring sets, their largest difference for the same tokens.
        report: Prints a line of progress.
    """

    client: Client
    ladder: Ladder
    words: Words
    report: Callable[[str], None]
    rows: dict[tuple[int, str, str], Row] = field(default_factory=dict)
    apart: dict[tuple[str, str], float] = field(default_factory=dict)

    async def run(self, ends: Sequence[int], chats: Sequence[Case]) -> None:
        """Send every case of these limits, alone, in one batch with others, from the cache and in other sets' tracks.

        Raises:
            InputError: when the shortest lone request cannot be compared, as then no other can.
        """
        rest, lone = 0.0, list[Case]()
        for end in ends:
            self.report(f"{end:,} tokens: one request alone")
            lone.append(alone(self.ladder, end, self.words))
            started = time.monotonic()
            await self._check(lone[-1])
            rest += (CROSSED if crosses(self.ladder, end) else OTHER) * (time.monotonic() - started)
            first = next(iter(self.rows.values()))
            if first.unknown:
                raise InputError(first.unknown[0])
        self.report(f"the rest takes about {max(1, rest / 60):.0f} min")
        sent, unsure = dict[int, list[Case]](), lone
        async with asyncio.TaskGroup() as group:
            load = group.create_task(self.client.others(self.words, self.ladder))
            try:
                for _ in range(TRIES):
                    sent |= {each.limit: around(self.ladder, each.limit, each, self.words) for each in unsure}
                    await self._phase([case for each in unsure for case in sent[each.limit]])
                    unsure = [
                        alone(self.ladder, each.limit, self.words) for each in unsure if self.is_blind(each.limit)
                    ]
                cases = list(chain(*sent.values()))
                for each in cases:
                    await self._phase([Case(each.limit, each.where, CACHED, each.prompt)])
                for past in (case for case in cases if case.where == "one past"):
                    before, after = after_another_set(self.ladder, past)
                    await self._phase([before], compared=False)
                    await self._phase([after])
                await self._phase(chats)
            finally:
                load.cancel()

    @property
    def rounding(self) -> tuple[float, float, float]:
        return ROUNDING.get(self.ladder.dtype, ROUNDING_OF_OTHERS)

    def tolerance(self) -> float:
        """Return the largest difference that rounding explains."""
        noise = max((row.worst for row in self.rows.values() if row.how == ALONE), default=0.0)
        least, most, _ = self.rounding
        return min(max(least, TIMES * noise), most)

    def allowed(self, row: Row) -> float:
        """Return the largest difference that is no fault in a row."""
        return {ALONE: self.rounding[1], REFERENCE: self.rounding[2]}.get(row.how, self.tolerance())

    def verdict(self, row: Row) -> str:
        """Return :data:`EXACT`, :data:`DIFFERS`, or :data:`UNKNOWN` where another set would have passed too."""
        if row.faults or row.worst > self.allowed(row):
            return DIFFERS
        blind = row.how not in (ALONE, REFERENCE) and self.is_blind(row.limit)
        return UNKNOWN if row.unknown or blind else EXACT

    def is_blind(self, limit: int) -> bool:
        """Whether the sets on a limit's sides were as alike as rounding."""
        return self.apart_at.get(limit, 1.0) <= self.tolerance()

    @property
    def apart_at(self) -> dict[int, float]:
        """The largest difference between the sets on each limit's sides, for the same tokens."""
        limits = {row.limit: self.ladder.beside(row.limit) for row in self.rows.values()}
        return {limit: self.apart[pair] for limit, pair in limits.items() if pair in self.apart}

    def compare(self, reference: "Reference", tokens: Sequence[int], served: dict[str, list[float]]) -> None:
        """Compare the server's scores of a text in each set with Transformers', by their mean difference."""
        found = {}
        for name in self.ladder.names:
            self.report(f"{REFERENCE}: {len(tokens):,} tokens in set {name}")
            found[name] = reference.scores(tokens, name)
        for name, end in zip(self.ladder.names, self.ladder.ends, strict=True):
            off = {each: _mean_difference(served[name], scores) for each, scores in found.items()}
            row = self.rows[end, REFERENCE, name] = Row(end, REFERENCE, name, [off[name]])
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
                # Its blocks were evicted meanwhile; now they are back.
                answer = await self.client.answer(case)
            sequence = answer.prompt + answer.tokens
            stretches = self.ladder.stretches(len(answer.prompt), case.answer, case.forced)
            worst = 0.0
            for name, lengths in stretches:
                worst = max(worst, _furthest(answer, await self.client.scores(sequence, name), lengths))
            beside = self.ladder.beside(case.limit)
            crossed = [
                end for end in self.ladder.ends if crosses(self.ladder, end) and self.ladder.beside(end) == beside
            ]
            if beside and case.how == BATCH and case.where == ("crossing" if crossed else "below"):
                one, other = [(await self.client.scores(sequence, name))[-ANSWER:] for name in beside]
                self.apart[beside] = max(abs(a - b) for a, b in zip(one, other, strict=True))
        except InputError as error:
            row.unknown.append(str(error))
            return
        row.errors.append(worst)
        if answer.named_set not in (None, stretches[0][0]):
            row.faults.append(f"began in set {answer.named_set!r} instead of {stretches[0][0]!r}")
        if case.how == CACHED and answer.cached == 0:
            row.unknown.append("the prefix cache had nothing of the prompt")


def _mean_difference(served: Sequence[float], reference: Sequence[float]) -> float:
    return sum(abs(one - other) for one, other in zip(served, reference, strict=True)) / len(served)


def _furthest(answer: Answer, scores: Sequence[float], lengths: range) -> float:
    """Return the largest difference over the tokens that follow sequences of these lengths."""
    prompt = len(answer.prompt)
    return max(abs(answer.log_probs[length - prompt] - scores[length - 1]) for length in lengths)
