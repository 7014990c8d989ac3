"""Settings of a search, with the LongRoPE paper's defaults."""

from dataclasses import dataclass, fields
from typing import Any

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import whole_value
from ropeswitch.factors.quoted import quoted

# Above this length, the paper halves the cost of a search and evaluates fewer documents.
LONG = 512 * 1024


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search at one length in tokens (LongRoPE, arXiv:2402.13753, section 4.1 and algorithm 1).

    ``cli.NUMBERS`` describes the numbers. ``monotone`` factors do not decrease from one frequency to the next. A FactorError
    names the field that is out of range, its value and what is allowed.
    """

    length: int
    population: int = 64
    mutations: int = 16
    crossovers: int = 16
    parents: int = 32
    iterations: int = 40
    probability: float = 0.3
    monotone: bool = True
    documents: int = 5
    tokens_judged: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"length": 2, "population": 3, "parents": 2, "documents": 1}
        for field in fields(self):
            if field.type in ("int", int):
                smallest = least.get(field.name, 0)
                allowed = f"a whole number of at least {smallest}"
                whole_value(field.name, getattr(self, field.name), smallest, allowed=allowed)
        if not 0 < self.probability <= 1:
            raise FactorError(f"probability: {quoted(self.probability)} must be above 0 and at most 1")
        if self.parents > self.population:
            raise FactorError(f"parents: {self.parents} must not exceed population ({self.population})")
        if self.tokens_judged is not None and not 1 <= self.tokens_judged < self.length:
            raise FactorError(f"tokens_judged: {self.tokens_judged} must be from 1 to length - 1, {self.length - 1}")

    @classmethod
    def paper(cls, length: int, **changes: Any) -> "SearchSettings":
        """Return the paper's settings for a length, overridden by all ``changes`` that are not None.

        Above 512k tokens, population, mutations and crossovers are halved and 3 documents are used instead of 5
        (arXiv:2402.13753, section 4.1). There are 32 parents, or the whole population if it is smaller.
        """
        long = {"population": 32, "mutations": 8, "crossovers": 8, "documents": 3} if length > LONG else {}
        chosen = long | {name: value for name, value in changes.items() if value is not None}
        chosen.setdefault("parents", min(cls.parents, chosen.get("population", cls.population)))
        return cls(length=length, **chosen)

    @property
    def evaluations(self) -> int:
        """Number of candidates that the whole search evaluates."""
        return self.population + self.iterations * (self.mutations + self.crossovers)
