"""The prompts of a verification: around each limit of a server's ladder, and the sets that their answers must have."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

# Tokens of an answer: enough on either side of a limit for the sets to differ, and few recomputations.
ANSWER = 16
# Tokens of the answers that show how differently kernels round.
MEASURED = 64
# Requests of other users beside those that are verified, and the longest of their prompts, in tokens.
OTHERS, LONGEST_OTHER = 8, 512
# How a case is sent. `cached` repeats a prompt of `batch`; `other set` follows the same prompt in the next lower set.
ALONE, BATCH, CACHED, OTHER_SET, CHAT = "alone", "in a batch", "cached", "after another set", "chat"


@dataclass(frozen=True)
class Ladder:
    """A server's ladder.

    Attributes:
        names: Its sets, in order.
        ends: The longest sequence of each, in tokens.
        policy: ``length``, or ``reserve``, which places a request by its prompt and output limit.
        longest: The longest sequence that the server takes, in tokens.
        dtype: Of its weights and activations.
    """

    names: tuple[str, ...]
    ends: tuple[int, ...]
    policy: str
    longest: int
    dtype: str

    def set_of(self, length: int) -> str:
        """Return the set of a sequence of ``length`` tokens."""
        return self.names[bisect_left(self.ends, length)]

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
        answer: Tokens of its answer.
    """

    limit: int
    where: str
    how: str
    prompt: tuple[int, ...]
    forced: str | None = None
    text: str | None = None
    answer: int = ANSWER


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


def limits(ladder: Ladder, longest: int) -> list[int]:
    """Return the ends of sets around which prompts of at most ``longest`` tokens fit, answers included."""
    return [end for end in ladder.ends if 3 * MEASURED < end <= min(longest, ladder.longest)]


def alone(ladder: Ladder, ends: Sequence[int], words: Words) -> list[Case]:
    """Return one request for each set, far from its limits, that asks for its set."""
    return [
        Case(end, "in the set", ALONE, words.cut(end - 2 * MEASURED), ladder.set_of(end), answer=MEASURED)
        for end in ends
    ]


def around(ladder: Ladder, end: int, words: Words) -> list[Case]:
    """Return prompts below, at and one past a limit, and those whose answers cross it."""
    places = {"below": end - 2 * ANSWER, "crossing": end - ANSWER // 2, "at": end, "one past": end + 1}
    # One more token than a prompt with its answer is scored.
    return [
        Case(end, where, BATCH, words.cut(tokens))
        for where, tokens in places.items()
        if tokens + ANSWER < ladder.longest
    ]


def after_another_set(ladder: Ladder, end: int, words: Words) -> tuple[Case, Case] | None:
    """Return two requests with one prompt, one past a limit: first in the set that ends there, then in its own."""
    if end + 1 + ANSWER >= ladder.longest:
        return None
    prompt = words.cut(end + 1)
    first = Case(end, "one past", OTHER_SET, prompt, ladder.set_of(end), answer=1)
    return first, Case(end, "one past", OTHER_SET, prompt)
