"""Runs a verification: sends cases, scores the tokens of their answers whole, and compares the two."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.verify.ask import Answer, Client
from ropeswitch.loadtests.verify.plan import (
    ALONE,
    ANSWER,
    BATCH,
    CACHED,
    CHAT,
    OTHER_SET,
    Case,
    Ladder,
    Words,
    after_another_set,
    alone,
    around,
)

if TYPE_CHECKING:
    from ropeswitch.loadtests.verify.reference import Reference

# In log-probability, by the server's dtype: kernels for one token and for many round differently. Where a request alone is
# further off than MOST_NOISE, its rotation is wrong; others may be off by TIMES as much as those, and at least by LEAST.
LEAST = {"float32": 1e-3, "float16": 1e-2}
LEAST_OF_OTHERS, TIMES, MOST_NOISE = 0.03, 3.0, 0.3
# The mode of the comparison with Transformers, and its longest text, in tokens.
REFERENCE, MOST_REFERENCE = "Transformers", 4096
EXACT, DIFFERS, UNKNOWN = "exact", "DIFFERS", "cannot tell"


@dataclass
class Row:
    """One line of the result: all requests of one place and mode.

    Attributes:
        errors: Largest difference of an answer's log-probabilities and those of the same tokens scored whole, by answer.
        faults: What else was wrong.
    """

    limit: int
    how: str
    where: str
    errors: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.errors, default=0.0)


@dataclass
class Verification:
    """A run.

    Attributes:
        apart: By limit, the largest difference between the sets on its sides, for the same tokens.
        report: Prints a line of progress.
    """

    client: Client
    ladder: Ladder
    words: Words
    report: Callable[[str], None]
    rows: dict[tuple[int, str, str], Row] = field(default_factory=dict)
    apart: dict[int, float] = field(default_factory=dict)

    async def run(self, ends: Sequence[int], tokenizer: Tokenizer) -> None:
        """Send every case of these limits, alone, in one batch with others, from the cache and in other sets' tracks."""
        started = time.monotonic()
        for case in alone(self.ladder, ends, self.words):
            self.report(f"{case.limit:,} tokens: one request alone")
            await self._check(case)
        tokens = sum(ends)
        seconds = time.monotonic() - started
        self.report(
            f"alone: {seconds:.0f} s for {tokens:,} tokens; the rest takes about {max(1, seconds * 7 / 60):.0f} min"
        )
        cases = [case for end in ends for case in around(self.ladder, end, self.words)]
        async with asyncio.TaskGroup() as group:
            load = group.create_task(self.client.others(self.words, self.ladder.names))
            try:
                await self._phase(cases)
                await self._phase([Case(each.limit, each.where, CACHED, each.prompt) for each in cases])
                for end in ends:
                    if pair := after_another_set(self.ladder, end, self.words):
                        await self.client.answer(pair[0])
                        await self._check(pair[1])
                await self._phase(list(self._chats(ends, tokenizer)))
            finally:
                load.cancel()

    def tolerance(self) -> float:
        """Return the largest difference that rounding explains."""
        noise = max((row.worst for row in self.rows.values() if row.how == ALONE), default=0.0)
        return max(LEAST.get(self.ladder.dtype, LEAST_OF_OTHERS), TIMES * min(noise, MOST_NOISE / TIMES))

    def allowed(self, row: Row) -> float:
        """Return the largest difference that is no fault in a row."""
        return self.tolerance() if row.how in (BATCH, CACHED, OTHER_SET, CHAT) else MOST_NOISE

    def verdict(self, row: Row) -> str:
        """Return :data:`EXACT`, :data:`DIFFERS`, or :data:`UNKNOWN` where another set would have passed too."""
        if row.faults or row.worst > self.allowed(row):
            return DIFFERS
        blind = row.how not in (ALONE, REFERENCE) and self.apart.get(row.limit, inf) <= self.tolerance()
        return UNKNOWN if blind else EXACT

    async def compare(self, reference: "Reference", ends: Sequence[int]) -> None:
        """Compare the server's scores of a text in each set with Transformers', by their mean difference."""
        tokens = self.words.cut(min([*ends, MOST_REFERENCE]))
        for name, end in zip(self.ladder.names, self.ladder.ends, strict=True):
            self.report(f"{REFERENCE}: {len(tokens):,} tokens in set {name}")
            served = await self.client.scores(tokens, name)
            by_set = {each: _mean_difference(served, reference.scores(tokens, each)) for each in self.ladder.names}
            row = self.rows.setdefault((end, REFERENCE, name), Row(end, REFERENCE, name, [by_set[name]]))
            nearest = min(by_set, key=by_set.__getitem__)
            if by_set[nearest] < by_set[name] / 2:
                row.faults.append(f"rotates as set {nearest!r} of {REFERENCE} does")

    async def _phase(self, cases: Sequence[Case]) -> None:
        if cases:
            tokens = sum(len(case.prompt) for case in cases)
            self.report(f"{cases[0].how}: {len(cases)} requests, {tokens:,} prompt tokens")
        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(self._check(case))

    async def _check(self, case: Case) -> None:
        row = self.rows.setdefault((case.limit, case.how, case.where), Row(case.limit, case.how, case.where))
        answer = await self.client.answer(case)
        sequence = answer.prompt + answer.tokens
        stretches = self.ladder.stretches(len(answer.prompt), case.answer, case.forced)
        if answer.named_set not in (None, stretches[0][0]):
            row.faults.append(f"began in set {answer.named_set!r} instead of {stretches[0][0]!r}")
        worst = 0.0
        for name, lengths in stretches:
            scores = await self.client.scores(sequence, name)
            worst = max(worst, _furthest(answer, scores, lengths))
        row.errors.append(worst)
        if case.how == BATCH and case.where == "crossing":
            await self._tell_apart(case.limit, sequence)

    async def _tell_apart(self, limit: int, sequence: tuple[int, ...]) -> None:
        lower, upper = self.ladder.set_of(limit), self.ladder.set_of(limit + 1)
        pairs = zip(await self.client.scores(sequence, lower), await self.client.scores(sequence, upper), strict=True)
        self.apart[limit] = max(abs(one - other) for one, other in list(pairs)[-ANSWER:])

    def _chats(self, ends: Iterable[int], tokenizer: Tokenizer) -> Iterable[Case]:
        for end in ends:
            if end == self.ladder.longest:
                continue
            try:
                text = _message(tokenizer, self.words, end)
            except UsageError as error:
                self.report(f"no chats: {error}")
                return
            if text is None:
                self.report(f"no chat around {end:,} tokens: no message had that length")
            else:
                yield Case(end, "crossing", CHAT, (), text=text)


def _mean_difference(served: Sequence[float], reference: Sequence[float]) -> float:
    return sum(abs(one - other) for one, other in zip(served, reference, strict=True)) / len(served)


def _furthest(answer: Answer, scores: Sequence[float], lengths: range) -> float:
    """Return the largest difference over the tokens that follow sequences of these lengths."""
    prompt = len(answer.prompt)
    return max(abs(answer.log_probs[length - prompt] - scores[length - 1]) for length in lengths)


def _message(tokenizer: Tokenizer, words: Words, end: int) -> str | None:
    """Return a chat message whose answer crosses ``end`` tokens, or None where none of a few tries has its length."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics.values()).split())
    start = int(words.random.integers(len(text) // 2))
    wanted = end - ANSWER // 2
    characters = 2 * end
    for _ in range(12):
        message = text[start : start + characters]
        tokens = len(tokenizer.chat([{"role": "user", "content": message}]))
        if abs(tokens - wanted) < ANSWER // 2:
            return message
        characters = max(1, characters * wanted // tokens)
    return None
