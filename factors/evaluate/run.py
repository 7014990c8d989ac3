"""Measures every cell of a grid of tasks, lengths, sets and seeds that has not been measured before."""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from tqdm import tqdm

from ropeswitch.factors.evaluate.cells import Cell, Cells
from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.haystack import Documents, Haystack, Repeated
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY, PerplexitySettings, choose, judge
from ropeswitch.factors.evaluate.questions import TASKS, Question, ask
from ropeswitch.factors.evaluate.target import SERVED, Target
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.quoted import quoted

TASK_NAMES = (PERPLEXITY, *TASKS)
TEXT_TASKS = (PERPLEXITY, *(name for name, task in TASKS.items() if task.reads_text))
"""Tasks that depend on the texts."""
CHAT_REPLY_TOKENS = 64
"""Least tokens of a reply to a chat, which need not begin with the answer."""


@dataclass(frozen=True)
class Grid:
    """What is measured: every task at every length with every set, from every seed.

    Attributes:
        tasks: Of TASK_NAMES.
        lengths: Tokens of windows and prompts.
        sets: Names that the target knows.
        seeds: Each draws other documents, places, keys and words.
        tries: Questions of a task at one length (and depth) with one set and seed.
        depths: Of the needle grid, 0 to 1.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    sets: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    tries: int = 10
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)

    def cells(self) -> list[Cell]:
        """All of them, short ones first."""
        return [
            Cell(task, length, set_name, seed, depth)
            for length in self.lengths
            for task in self.tasks
            for seed in self.seeds
            for depth in (self.depths if task in TASKS and TASKS[task].has_depth else (None,))
            for set_name in self.sets
        ]


@dataclass(frozen=True)
class Evaluation:
    """A target and how it is measured.

    Attributes:
        target: A model or a server.
        grid: What is measured.
        corpus: Texts for perplexity and haystacks; None for the built-in haystack.
        perplexity: How it is measured.
        chat: Whether prompts go through a chat template.
    """

    target: Target
    grid: Grid
    corpus: Corpus | None = None
    perplexity: PerplexitySettings = field(default_factory=PerplexitySettings)
    chat: bool = False

    def checked(self) -> "Evaluation":
        """This, after a look at what would fail later.

        Raises:
            FactorError: naming a set or task that is not known, a length that is too long, or that texts are missing.
        """
        for name in self.grid.sets:
            if name not in self.target.sets:
                why = ""
                if self.target.sets == (SERVED,):
                    why = "; the server tells of no factor sets (it has no /v1/rope), so none can be asked for"
                known = ", ".join(map(repr, self.target.sets))
                raise FactorError(f"--sets: unknown set {quoted(name)}; there are {known}{why}")
        for task in self.grid.tasks:
            if task not in TASK_NAMES:
                raise FactorError(f"--tasks: unknown task {quoted(task)}; there are {', '.join(TASK_NAMES)}")
        if PERPLEXITY in self.grid.tasks and self.corpus is None:
            raise FactorError("perplexity: needs texts: give --text, or --tasks without perplexity")
        most = min(filter(None, map(self.target.longest, self.grid.sets)), default=None)
        if most is not None:
            for task in self.grid.tasks:
                reply = 1 if task == PERPLEXITY else self.reply_tokens(task)
                if (longest := max(self.grid.lengths)) + reply - 1 > most:
                    raise FactorError(
                        f"--lengths: {longest}: with {reply} of reply ({task}) that is more than the {most} tokens that can "
                        "be served"
                    )
        # What the shortest and the longest prompts need is known before hours of others.
        for length in {min(self.grid.lengths), max(self.grid.lengths)}:
            for task in self.grid.tasks:
                if task in TASKS:
                    self._question(Cell(task, length, self.grid.sets[0], 0), 0)
        if self.corpus is not None and PERPLEXITY in self.grid.tasks:
            longest = max(self.grid.lengths)
            choose(self.corpus, self.target, longest, random.Random(0), self.perplexity.documents)
        return self

    def reply_tokens(self, task: str) -> int:
        """Tokens of a reply; a sequence is computed up to the last but one of them."""
        tokens = TASKS[task].reply_tokens
        return max(tokens, CHAT_REPLY_TOKENS) if self.chat else tokens

    def settings(self) -> dict[str, Any]:
        """What the grid's cells depend on, beside their sets; what none of its tasks looks at is left out."""
        tasks = set(self.grid.tasks)
        found: dict[str, Any] = {"target": self.target.describe()}
        if tasks & set(TASKS):
            found["tries"] = self.grid.tries
        if tasks & set(TEXT_TASKS):
            text = None if self.corpus is None else {"source": self.corpus.source, "sha256": self.corpus.digest}
            found["text"] = text
        if PERPLEXITY in tasks:
            found["perplexity"] = asdict(self.perplexity)
        return found

    def run(self, cells: Cells, progress: bool = True) -> dict[Cell, Any]:
        """Measure what ``cells`` has not, and keep it there.

        Returns:
            Every cell of the grid.

        Raises:
            FactorError: when one cannot be measured; those before it are kept.
        """
        wanted = self.grid.cells()
        left = [cell for cell in wanted if cell not in cells.found]
        with tqdm(total=len(wanted), initial=len(wanted) - len(left), unit="cell", disable=not progress) as bar:
            for cell in left:
                bar.set_description(str(cell))
                cells.keep(cell, self.measure(cell))
                bar.update()
        return {cell: cells.found[cell] for cell in wanted}

    def measure(self, cell: Cell) -> list[dict[str, Any]]:
        """The documents (see :class:`~ropeswitch.factors.evaluate.perplexity.Judged`) or the tries of one cell."""
        if cell.task == PERPLEXITY:
            assert self.corpus is not None
            return judge(self.target, self.corpus, cell.set_name, cell.length, cell.seed, self.perplexity)
        task = TASKS[cell.task]
        questions = [self._question(cell, number) for number in range(self.grid.tries)]
        replies = self.target.replies(
            [question.text for question in questions], cell.set_name, self.reply_tokens(cell.task)
        )
        return [
            {
                "try": number,
                "depth": question.depth,
                "answers": list(question.answers),
                "reply": reply,
                "score": task.score(reply, question.answers),
            }
            for number, (question, reply) in enumerate(zip(questions, replies, strict=True))
        ]

    def _question(self, cell: Cell, number: int) -> Question:
        """A try's; the set is left out of the random numbers, so that all sets are asked the same."""
        rng = random.Random(f"{cell.task} {cell.length} {cell.seed} {cell.depth} {number}")
        haystack: Haystack = Repeated() if self.corpus is None else Documents(self.corpus, rng)
        return ask(TASKS[cell.task], self.target.encode, cell.length, rng, haystack, cell.depth)
