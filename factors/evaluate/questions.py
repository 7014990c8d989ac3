"""Questions of the retrieval tasks: prompts of an exact length, expected answers, and scoring of replies."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ropeswitch.factors.evaluate import passkey
from ropeswitch.factors.evaluate.exact_length import exact_length
from ropeswitch.factors.evaluate.haystack import Haystack
from ropeswitch.factors.evaluate.needle import Writer, needle


@dataclass(frozen=True)
class Question:
    """One prompt with its answers.

    Attributes:
        text: The prompt.
        answers: Strings that a correct reply contains.
        depth: Position of the needle, 0 to 1.
    """

    text: str
    answers: tuple[str, ...]
    depth: float


@dataclass(frozen=True)
class Task:
    """A kind of question.

    Attributes:
        name: Name on the command line and in results.
        reply_tokens: Tokens to generate when the prompt is continued as plain text.
        write: Draws a question from a random generator, a haystack and a depth (or None).
        score: Returns the score of a reply, 0 to 1.
        has_depth: Whether it is measured on a grid of depths.
        reads_text: Whether its haystack can be the user's texts.
    """

    name: str
    reply_tokens: int
    write: Callable[[random.Random, Haystack, float | None], Writer]
    score: Callable[[str, tuple[str, ...]], float]
    has_depth: bool = False
    reads_text: bool = False


def share_told(reply: str, answers: tuple[str, ...]) -> float:
    """Return the fraction of answers in the reply, ignoring case (RULER's ``string_match_all``, arXiv:2404.06654)."""
    return sum(answer.lower() in reply.lower() for answer in answers) / len(answers)


def ask(
    task: Task,
    encode: Callable[[str], list[int]],
    tokens: int,
    rng: random.Random,
    haystack: Haystack,
    depth: float | None,
) -> Question:
    """Return a question of exactly ``tokens`` tokens.

    Raises:
        FactorError: when the task needs more tokens, or the haystack is too short.
    """
    written = task.write(rng, haystack, depth)
    text = exact_length(written.make, encode, tokens, f"{task.name} prompt")
    return Question(text, written.answers, written.depth)


def _passkey(rng: random.Random, haystack: Haystack, depth: float | None) -> Writer:
    key = passkey.random_key(rng)
    share = rng.random() if depth is None else depth
    return Writer(partial(passkey.passkey_text, key, share), (key,), share)


TASKS = {
    task.name: task
    for task in (
        Task(
            "passkey", passkey.REPLY_TOKENS, _passkey, lambda reply, answers: float(passkey.is_found(reply, answers[0]))
        ),
        Task("needle", 32, needle, share_told, has_depth=True, reads_text=True),
    )
}
