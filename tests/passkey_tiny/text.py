"""Every piece of text the recipe writes: filler, pass-key statements, questions and replies.

All pieces but the first of a text begin with a space or follow a newline, so that the tokens of a
text are the tokens of its pieces one after the other. Prompts of an exact length rest on that.
"""

import random
from dataclasses import dataclass

from ropeswitch.models.miniature.words import ADJECTIVES, COMMON_WORDS, NOUNS


def _words(text: str) -> list[str]:
    return text.split()


KEY_DIGITS = 6
UNREADABLE = "?"
NO_KEY_REPLY = "There is no pass key in this text."
REPLY_JOIN = ". To be quite sure, look at it one more time and write it down: the{name} pass key is "
VERBS = _words(
    "sees finds follows likes leaves remembers crosses paints carries watches hears guards visits "
    "forgets draws keeps meets passes opens builds"
)
PLACES = _words("near behind beside above under around before after")
LETTERS = "aaabcddeeeefghhiiijklllmnnnooopqrrrsssttttuuvwxyz"
"""Letters, about as often as English has them."""
KEY_NAMES = ("", " red", " golden", " silver", " iron", " wooden", " paper", " glass")
"""Adjective of a pass key, with its leading space; the empty one is the canonical prompt's."""


@dataclass(frozen=True)
class Fact:
    """One pass key: `name` is one of KEY_NAMES, `digits` a string of KEY_DIGITS digits."""

    name: str
    digits: str

    @property
    def statement(self) -> str:
        return f"{self.bare_statement} Remember it."

    @property
    def bare_statement(self) -> str:
        return f" The{self.name} pass key is {self.digits}."

    @property
    def question(self) -> str:
        return f" What is the{self.name} pass key?"

    @property
    def reply_parts(self) -> tuple[str, str, str, str, str]:
        """The reply, cut around its two statements of the digits.

        They are some twenty tokens apart, so that a limit crossed while replying can fall between
        them and each side shows whether its factor set was the right one.
        """
        join = REPLY_JOIN.format(name=self.name)
        return (f"The{self.name} pass key is ", self.digits, join, self.digits, ".")

    @property
    def reply(self) -> str:
        return "".join(self.reply_parts)


def random_digits(rng: random.Random) -> str:
    return "".join(rng.choices("0123456789", k=KEY_DIGITS))


def sentence(rng: random.Random) -> str:
    """One sentence of filler with its leading space; one in twenty holds a number that is no key."""
    noun, other = rng.sample(NOUNS, 2)
    adjective, verb = rng.choice(ADJECTIVES), rng.choice(VERBS)
    roll = rng.random()
    if roll < 0.35:
        return f" The {adjective} {noun} {verb} the {other}."
    if roll < 0.6:
        return f" A {noun} {verb} the {adjective} {other} {rng.choice(PLACES)} the {rng.choice(NOUNS)}."
    if roll < 0.8:
        return f" The {noun} is {adjective} and the {other} is {rng.choice(ADJECTIVES)}."
    if roll < 0.95:
        return f" It is {adjective} {rng.choice(PLACES)} the {noun}."
    return f" The {noun} is {rng.randrange(10 ** rng.randint(1, KEY_DIGITS))} steps from the {other}."


def _wild_word(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(COMMON_WORDS)
    if roll < 0.6:
        return rng.choice(NOUNS + VERBS + ADJECTIVES)
    if roll < 0.97:
        return "".join(rng.choices(LETTERS, k=rng.randint(2, 9)))
    return str(rng.randrange(10 ** rng.randint(1, KEY_DIGITS - 1)))


def wild_sentence(rng: random.Random) -> str:
    """Known and made-up words in any order: what stands for other people's texts in training."""
    words = [_wild_word(rng) for _ in range(rng.randint(2, 10))]
    if rng.random() < 0.8:
        words[0] = words[0].capitalize()
    if len(words) > 4 and rng.random() < 0.3:
        words[2] += ","
    return " " + " ".join(words) + rng.choice("....!;:")


def words_for_tokenizer() -> list[str]:
    """A corpus in which every word of the recipe occurs, with and without its leading space."""
    rng = random.Random(0)
    lines = ["".join(sentence(rng) for _ in range(6)) for _ in range(4000)]
    for name in KEY_NAMES:
        fact = Fact(name, "0123456789")
        lines += [fact.statement, fact.question, fact.reply, NO_KEY_REPLY, "\n"] * 200
    everything = [*ADJECTIVES, *NOUNS, *VERBS, *PLACES]
    lines += [f" {word}" for word in everything] * 20
    lines += [f" {word}" for word in COMMON_WORDS] * 4
    lines += ["Read this text.", " so so so."] * 200
    return lines
