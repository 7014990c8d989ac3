"""The prompts of a verification: around each limit of a server's ladder, and the sets that their answers must have."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

# Tokens of an answer: enough on either side of a limit for the sets to differ, and few recomputations.
ANSWER = 16
# Tokens of the answers that show how differently kernels round; the shortest sequences around which anything is sent.
MEASURED = 64
SHORTEST = 3 * MEASURED + ANSWER + 1
# Requests of other users beside those that are verified, and the longest of their prompts and answers, in tokens.
OTHERS, OTHER_PROMPT, OTHER_ANSWER = 4, 512, 64
# How a case is sent. `cached` repeats a prompt of `batch`; `other set` follows the same prompt in the next lower set.
ALONE, BATCH, CACHED, OTHER_SET, CHAT = "alone", "in a batch", "cached", "after another set", "chat"


@dataclass(frozen=True)
class Ladder:
    """A server's ladder.

    Attributes:
        names: Its sets, in order.
        ends: The longest sequence of each, in tokens; of the last, at most the server's.
        policy: ``length``, or ``reserve``, which places a request by its prompt and output limit.
        dtype: Of the server's weights and activations.
        most: The longest sequences to send, in tokens.
    """

    names: tuple[str, ...]
    ends: tuple[int, ...]
    policy: str
    dtype: str
    most: int

    @classmethod
    def of(cls, rope: dict[str, Any], most: int) -> "Ladder":
        """Return the ladder of ``GET /v1/rope``, without the sets that no sequence of its ``max_model_len`` tokens needs.

        Raises:
            KeyError, TypeError, ValueError: when it is not such an answer.
        """
        longest = int(rope["max_model_len"])
        ends = [min(int(each["max_length"]), longest) for each in rope["sets"]]
        count = ends.index(longest) + 1 if longest in ends else len(ends)
        names = tuple(str(each["name"]) for each in rope["sets"][:count])
        return cls(names, tuple(ends[:count]), str(rope["policy"]), str(rope["dtype"]), most)

    @property
    def longest(self) -> int:
        """The longest sequence, in tokens."""
        return self.ends[-1]

    def set_of(self, length: int) -> str:
        """Return the set of a sequence of ``length`` tokens."""
        return self.names[bisect_left(self.ends, length)]

    def beside(self, end: int) -> tuple[str, str] | None:
        """Return the sets on both sides of a limit; of the last one, its set and the one before; None for one set."""
        index = min(bisect_left(self.ends, end), len(self.names) - 2)
        return None if index < 0 else (self.names[index], self.names[index + 1])

    def stretches(self, prompt: int, answer: int, forced: str | None) -> list[tuple[str, range]]:
        """Return the sets of an answer's tokens, each with the lengths of the sequences that they follow."""
        lengths = range(prompt, prompt + answer)
        reserved = self.set_of(min(prompt + answer, self.longest))
        names = [forced or (reserved if self.policy == "reserve" else self.set_of(each)) for each in lengths]
        found, start = [], prompt
        for name, same in groupby(names):
            end = start + len(list(same))
            found.append((name, range(start, end)))
            start = end
        return found


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        limit: The sequence length around which it lies, in tokens.
        where: Its place by the limit, for the table.
        how: One of the names above.
        prompt: Token ids; a chat's are those that the server reports.
        forced: The set that it asks for, or None.
        text: The message of a chat.
        track: Keeps a prompt that others have too from their cached blocks.
        answer: Tokens of its answer.
    """

    limit: int
    where: str
    how: str
    prompt: tuple[int, ...]
    forced: str | None = None
    text: str | None = None
    answer: int = ANSWER
    track: str = ""


@dataclass(frozen=True)
class Words:
    """Token ids of a text, from which prompts are cut."""

    opening: tuple[int, ...]
    ids: Sequence[int]
    random: np.random.Generator

    def cut(self, tokens: int) -> tuple[int, ...]:
        """Return a prompt of so many tokens, from a random place of the text."""
        start = int(self.random.integers(len(self.ids)))
        room = tokens - len(self.opening)
        repeated = [self.ids[(start + i) % len(self.ids)] for i in range(room)]
        return (*self.opening, *repeated)[:tokens]


def limits(ladder: Ladder) -> list[int]:
    """Return the lengths around which sequences fit: ends of sets, and the longest sequence, which lies in a set."""
    last = min(ladder.longest, ladder.most)
    return sorted({end for end in (*ladder.ends, last) if end >= SHORTEST and (end == last or crosses(ladder, end))})


def crosses(ladder: Ladder, end: int) -> bool:
    """Whether sequences may go on after ``end`` tokens, by the length of two answers, in another set."""
    return end in ladder.ends and end + 2 * ANSWER < min(ladder.longest, ladder.most)


def alone(ladder: Ladder, end: int, words: Words) -> Case:
    """Return a request for the set that ends there, far from its limits."""
    prompt = words.cut(end - MEASURED - ANSWER)
    return Case(end, "in the set", ALONE, prompt, ladder.set_of(end), answer=MEASURED, track="alone")


def around(ladder: Ladder, end: int, below: Case, words: Words) -> list[Case]:
    """Return prompts below, at and one past a limit, and those whose answers cross it.

    The first has the prompt of ``below``, so that the same tokens, which it chooses again, are scored once.
    """
    places = {"crossing": end - ANSWER // 2, "at": end, "one past": end + 1} if crosses(ladder, end) else {}
    return [
        Case(end, "below", BATCH, below.prompt, answer=MEASURED),
        *(Case(end, where, BATCH, words.cut(tokens)) for where, tokens in places.items()),
    ]


def after_another_set(ladder: Ladder, past: Case) -> tuple[Case, Case]:
    """Return two requests with the prompt of ``past``, one past a limit: in the set that ends there, then in its own."""
    other = replace(past, how=OTHER_SET, track="other")
    return replace(other, forced=ladder.set_of(past.limit), answer=1), other
