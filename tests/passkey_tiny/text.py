"""Every piece of text of a prompt: filler, pass-key statements, questions and replies.

All pieces but the first of a text begin with a space or follow a newline, so that the tokens of a
text are the tokens of its pieces one after the other. Prompts of an exact length rest on that.
"""

import random

KEY_DIGITS = 6
ADJECTIVES = (
    "old young small large quiet loud bright dark warm cold green blue brown white heavy light "
    "round narrow happy tired clever slow quick wild gentle proud empty"
).split()
NOUNS = (
    "river mountain house garden farmer teacher sailor horse bird cat dog tree stone road bridge "
    "town market boat window door lamp book letter song story winter summer morning evening cloud "
    "forest field village baker child king queen island harbour train"
).split()
VERBS = (
    "sees finds follows likes leaves remembers crosses paints carries watches hears guards visits "
    "forgets draws keeps meets passes opens builds"
).split()
PLACES = "near behind beside above under around before after".split()
QUESTION = " What is the pass key?"


def statement(digits: str) -> str:
    return f" The pass key is {digits}. Remember it."


def reply(digits: str) -> str:
    """The reply that the model is trained to give, which states the digits twice.

    The two are some twenty tokens apart, so that a limit crossed while replying can fall between them and each shows whether
    its factor set was the right one.
    """
    return (
        f"The pass key is {digits}. To be quite sure, look at it one more time and write it down: "
        f"the pass key is {digits}."
    )


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
