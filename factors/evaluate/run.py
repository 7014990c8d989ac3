"""Measures the missing cells of a grid of tasks, lengths, sets and seeds."""

import math
import random
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from typing import Any

from tqdm import tqdm

from ropeswitch.factors.evaluate.cells import TASKS, Cell
from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.passkey import PASSKEY, REPLY_TOKENS, Question, ask, is_found
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY, PerplexitySettings, choose, judge
from ropeswitch.factors.evaluate.target import SERVED, Target
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.kept import Kept, digest
from ropeswitch.factors.quoted import quoted

CHAT_REPLY_TOKENS = 64
"""Minimum tokens of a chat reply, which may not begin with the answer."""
TASK = {"format": "ropeswitch-cells/2"}
"""First line of the file of finished cells."""


@dataclass(frozen=True)
class Grid:
    """The grid to measure: every task at every length (in tokens) with every set, from every seed; and tries per cell."""

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    sets: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    tries: int = 10

    def cells(self) -> list[Cell]:
        """Return all cells, short lengths first."""
        return [
            Cell(task, length, set_name, seed)
            for length in self.lengths
            for task in self.tasks
            for seed in self.seeds
            for set_name in self.sets
        ]


@dataclass(frozen=True)
class Evaluation:
    """A model or server, the grid to measure, texts for perplexity, and whether prompts go through a chat template."""

    target: Target
    grid: Grid
    corpus: Corpus | None = None
    perplexity: PerplexitySettings = field(default_factory=PerplexitySettings)
    chat: bool = False

    def checked(self) -> "Evaluation":
        """Return this evaluation after checking for errors that would otherwise occur late; a FactorError names the flag."""
        for name in self.grid.sets:
            if name not in self.target.sets:
                why = ""
                if self.target.sets == (SERVED,):
                    why = "; the server has no /v1/rope to list its factor sets, so none can be requested"
                known = ", ".join(map(repr, self.target.sets))
                raise FactorError(f"--sets: unknown set {quoted(name)}; known sets are {known}{why}")
        for task in self.grid.tasks:
            if task not in TASKS:
                raise FactorError(f"--tasks: unknown task {quoted(task)}; known tasks are {', '.join(TASKS)}")
        if PERPLEXITY in self.grid.tasks and self.corpus is None:
            raise FactorError("perplexity: needs texts; give --text, or --tasks without perplexity")
        longest = max(self.grid.lengths)
        most = min(filter(None, map(self.target.longest, self.grid.sets)), default=math.inf)
        for task in self.grid.tasks:
            reply = 1 if task == PERPLEXITY else self.reply_tokens
            if longest + reply - 1 > most:
                raise FactorError(
                    f"--lengths: {longest} must be at most {most - reply + 1}: the target can run no longer prompt with "
                    f"a reply of {reply} tokens ({task})"
                )
        # Build the shortest and longest prompts now, so that errors show before hours of other work.
        if PASSKEY in self.grid.tasks:
            for length in {min(self.grid.lengths), longest}:
                self._question(length, 0, 0)
        if self.corpus is not None and PERPLEXITY in self.grid.tasks:
            opening, wanted = len(self.target.opening), self.perplexity.documents
            choose(self.corpus, self.target.plain_ids, opening, longest, random.Random(0), wanted)
        return self

    @property
    def reply_tokens(self) -> int:
        """Tokens of a reply with a pass key; the last of them is never fed back to the model."""
        return CHAT_REPLY_TOKENS if self.chat else REPLY_TOKENS

    def settings(self) -> dict[str, Any]:
        """Return the settings that results depend on besides their sets, without those that no task uses."""
        found: dict[str, Any] = {"target": self.target.describe()}
        if PASSKEY in self.grid.tasks:
            found["tries"] = self.grid.tries
        if PERPLEXITY in self.grid.tasks:
            assert self.corpus is not None
            found["text"] = {"source": self.corpus.source, "sha256": self.corpus.digest}
            found["perplexity"] = asdict(self.perplexity)
        return found

    def keys(self) -> dict[Cell, list[Any]]:
        """Return a key for each cell: itself, and a digest of everything else that it depends on."""
        settings, used = self.settings(), {PASSKEY: ("target", "tries"), PERPLEXITY: ("target", "text", "perplexity")}
        digests = {
            (task, name): digest([[settings[each] for each in used[task]], self.target.describe_set(name)])
            for task in self.grid.tasks
            for name in self.grid.sets
        }
        return {cell: [*astuple(cell), digests[cell.task, cell.set_name]] for cell in self.grid.cells()}

    def run(self, kept: Kept) -> dict[Cell, Any]:
        """Measure every cell of the grid that ``kept`` lacks, and return all of them."""
        found, keys = {}, self.keys()
        with tqdm(total=len(keys), initial=sum(key in kept for key in keys.values()), unit="cell") as bar:
            for cell, key in keys.items():
                bar.set_description(str(cell))
                is_new = key not in kept
                found[cell] = kept.get(key, partial(self.measure, cell))
                bar.update(is_new)
        return found

    def measure(self, cell: Cell) -> list[dict[str, Any]]:
        """Measure one cell: a dict of JSON values per document (:func:`judge`) or per try."""
        if cell.task == PERPLEXITY:
            assert self.corpus is not None
            return judge(self.target, self.corpus, cell.set_name, cell.length, cell.seed, self.perplexity)
        questions = [self._question(cell.length, cell.seed, number) for number in range(self.grid.tries)]
        replies = self.target.replies([question.text for question in questions], cell.set_name, self.reply_tokens)
        return [
            {
                "try": n,
                "depth": each.depth,
                "answers": [each.key],
                "reply": reply,
                "score": float(is_found(reply, each.key)),
            }
            for n, (each, reply) in enumerate(zip(questions, replies, strict=True))
        ]

    def _question(self, length: int, seed: int, number: int) -> Question:
        """Return the question of one try; all sets get the same questions."""
        # Earlier versions had the depth in place of None; the word keeps their questions.
        rng = random.Random(f"{PASSKEY} {length} {seed} None {number}")
        return ask(self.target.encode, length, rng)
