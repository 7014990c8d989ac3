"""The recipe's numbers: the LongRoPE paper (arXiv:2402.13753) in miniature, and a tiny form of it for tests.

The paper's lengths over its window of 4k are kept: search at 32 and 64 windows and fine-tuning there, a second search for
8 times as much, recovery at one and two windows. Its budgets are not: a population of 64 over 40 iterations at a quarter of
a million tokens takes weeks on two CPU cores.
"""

from dataclasses import dataclass, replace

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.models.miniature.rows import Mix
from ropeswitch.models.miniature.shape import RATIO, WINDOW, attention_factor, plain
from ropeswitch.models.miniature.train import Layout, Stage


@dataclass(frozen=True)
class Recipe:
    """All that decides what comes out.

    Attributes:
        base: Training within the window. It begins with the loss on what the text itself foretells, nearly alone: a small
            model that has to learn words at the same time learns to copy very late.
        searches: On the base model, by increasing length; the model is fine-tuned with each result in turn.
        tuning: As many stages as searches; their factor sets are filled in when they are found.
        second: The search on the fine-tuned model for the longest length.
        recoveries: Searches on the fine-tuned model for short lengths.
        scale: Of every set.
        window: Tokens that the base model is trained for.
    """

    base: tuple[Stage, ...]
    searches: tuple[SearchSettings, ...]
    tuning: tuple[Stage, ...]
    second: SearchSettings
    recoveries: tuple[SearchSettings, ...]
    scale: float = attention_factor()
    window: int = WINDOW

    def tuning_with(self, number: int, found: FactorSet) -> Stage:
        return replace(self.tuning[number], factor_set=found)


def full(window: int = WINDOW) -> Recipe:
    """The whole recipe; at a window of 4,096 tokens, which takes a GPU, its longest text has the paper's 2,097,152."""
    first, following, longest = 32 * window, 64 * window, RATIO * window
    return Recipe(
        base=(
            Stage("copying", 1200, 2e-3, (Layout(1.0, 4, window),), plain(window), mix=Mix(fresh=0.05), final=1.0),
            Stage("base", 1600, 2e-3, (Layout(1.0, 8, window),), plain(window)),
        ),
        searches=(
            SearchSettings(first, population=24, mutations=8, crossovers=8, parents=12, iterations=6, documents=2),
            SearchSettings(following, population=16, mutations=4, crossovers=4, parents=8, iterations=5, documents=1),
        ),
        tuning=(
            Stage(
                "x32",
                160,
                1e-3,
                (
                    Layout(0.5, 2, 4 * window, span=first),
                    Layout(0.35, 1, first, documents=4),
                    Layout(0.15, 1, first),
                ),
                plain(window),
            ),
            Stage(
                "x64",
                160,
                1e-3,
                (
                    Layout(0.5, 2, 4 * window, span=following),
                    Layout(0.25, 1, following, documents=8),
                    Layout(0.15, 1, first),
                    Layout(0.1, 1, following),
                ),
                plain(window),
            ),
        ),
        # The last tokens judge what the earlier searches did not; and all others need one layer less.
        second=SearchSettings(
            longest, population=6, mutations=2, crossovers=2, parents=4, iterations=2, documents=1, tokens_judged=4096
        ),
        recoveries=tuple(
            SearchSettings(length, population=32, mutations=8, crossovers=8, parents=16, iterations=20, documents=10)
            for length in (window, 2 * window)
        ),
        scale=attention_factor(window),
        window=window,
    )


FULL = full()
SMALL = Recipe(
    base=(Stage("base", 4, 3e-3, (Layout(1.0, 2, 192),), plain(), warmup=2, save_every=2),),
    searches=tuple(
        SearchSettings(length, population=4, mutations=1, crossovers=1, parents=2, iterations=1, documents=1)
        for length in (2 * WINDOW, 3 * WINDOW)
    ),
    tuning=(
        Stage("x2", 3, 1e-3, (Layout(1.0, 1, 256, documents=2),), plain(), warmup=1, save_every=2),
        Stage("x3", 3, 1e-3, (Layout(1.0, 1, 256, span=3 * WINDOW),), plain(), warmup=1, save_every=2),
    ),
    second=SearchSettings(6 * WINDOW, population=4, mutations=1, crossovers=1, parents=2, iterations=1, documents=1),
    recoveries=(SearchSettings(WINDOW, population=4, mutations=1, crossovers=1, parents=2, iterations=1, documents=1),),
)
