"""Documents of any length in which what was told long ago helps to predict what comes next.

A chronicle is about people. Each has two names, a trait, a trade and a number, the same through the whole document. Most
mentions are of people met before, drawn uniformly from all earlier mentions, so their distance grows with the document: a
reader that can look back any distance knows how a name goes on and what belongs to it.
"""

import random
from dataclasses import dataclass
from itertools import product

NAMES = tuple(
    f"{first}{second}"
    for first, second in product("B D F G H K L M N P R S".split(), "ado emi ila ora usa eno aki ube".split())
)
TRAITS = (
    "old young tall small loud quiet proud happy tired clever slow quick wild gentle strong pale brave kind rich poor "
    "blind lame bold shy grim merry stern sly calm vain"
).split()
TRADES = (
    "baker smith miller sailor weaver farmer hunter tailor potter singer teacher doctor soldier priest judge cook "
    "carpenter mason fisher shepherd merchant painter dancer guard clerk poet barber butcher gardener tanner"
).split()
VERBS = "sees meets follows helps likes fears visits greets watches calls thanks leaves".split()
THINGS = (
    "river mountain house garden bridge market boat window door lamp book letter road forest field village tower well "
    "harbour stable mill church wall gate hill barn tree stone fire bell"
).split()
PLACES = "near behind beside above under before after past".split()
CONCENTRATION, DISCOUNT = 4.0, 0.5
"""Of the Pitman-Yor process: somebody new comes up with a chance of (concentration + discount * people) / (concentration +
mentions), so the people of a document grow with the square root of its length."""


@dataclass(frozen=True)
class Person:
    full: str
    number: str


def make_person(rng: random.Random) -> Person:
    full = f"{rng.choice(NAMES)} {rng.choice(NAMES)} {rng.choice(TRAITS)} {rng.choice(TRADES)}"
    return Person(full, str(rng.randrange(100, 1000)))


class Chronicle:
    """Writes sentences, each beginning with a space, that hold together over the whole document."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.mentions: list[Person] = []
        self.people = 0

    def _person(self) -> Person:
        met = len(self.mentions)
        if self.rng.random() * (CONCENTRATION + met) < CONCENTRATION + DISCOUNT * self.people:
            person = make_person(self.rng)
            self.people += 1
        else:
            person = self.mentions[int(self.rng.random() * met)]
        self.mentions.append(person)
        return person

    def sentence(self) -> str:
        rng = self.rng
        roll = rng.random()
        one = self._person()
        if roll < 0.5:
            return f" {one.full} {rng.choice(VERBS)} {self._person().full}."
        if roll < 0.7:
            return f" {one.full} is {rng.choice(PLACES)} the {rng.choice(THINGS)}."
        if roll < 0.85:
            return f" {one.full} has {one.number} coins."
        return f" The {rng.choice(THINGS)} of {one.full} is {rng.choice(PLACES)} the {rng.choice(THINGS)}."


def chronicle(rng: random.Random, characters: int) -> str:
    """A chronicle of at least so many characters."""
    writer, parts, length = Chronicle(rng), [], 0
    while length < characters:
        part = writer.sentence()
        parts.append(part)
        length += len(part)
    return "".join(parts)[1:]
