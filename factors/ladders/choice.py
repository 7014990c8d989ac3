"""Parses the value of ``--ladder``, which is also the key ``ladder`` under plain vLLM."""

from dataclasses import dataclass
from itertools import pairwise

from ropeswitch.factors.errors import FieldError, UsageError
from ropeswitch.factors.numbers import number
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.rules.catalogue import RULES, Rule
from ropeswitch.factors.rules.lengths import parse_length

AUTO, NONE, FILE = "auto", "none", "file"
MOST_SETS = 16
EXAMPLES = "auto, none, file:PATH, or a rule with optional lengths, such as yarn, yarn:64k,128k or yarn:2x,4x"


@dataclass(frozen=True)
class Choice:
    """A parsed ``--ladder``: the text, and :data:`AUTO`, :data:`NONE`, :data:`FILE` with its path, or a rule's name.

    ``lengths`` are in tokens (int) or in native windows (float).
    """

    text: str
    kind: str
    rule: Rule | None = None
    lengths: tuple[int | float, ...] = ()
    path: str | None = None

    def tokens(self, window: int) -> tuple[int, ...]:
        """Return the lengths in tokens, which must increase and exceed the native window of ``window`` tokens."""
        lengths = tuple(each if isinstance(each, int) else round(each * window) for each in self.lengths)
        if lengths and lengths[0] <= window:
            raise FieldError(
                "ladder",
                "{text}: {first} tokens do not exceed the native window of {window}; give longer lengths, because the "
                "window has a set of its own",
                text=quoted(self.text),
                first=lengths[0],
                window=window,
            )
        if any(after <= before for before, after in pairwise(lengths)):
            found = ", ".join(map(str, lengths))
            raise FieldError(
                "ladder", "{text}: lengths must increase, found {found}", text=quoted(self.text), found=found
            )
        return lengths


def parse(text: str) -> Choice:
    """Parse the value of ``--ladder``; a FactorError names the unknown rule, the wrong length or their number."""
    kind, colon, rest = text.partition(":")
    if kind == FILE:
        if not rest:
            raise FieldError("ladder", "'file:' must be followed by the path of a factor file")
        return Choice(text, FILE, path=rest)
    if kind in (AUTO, NONE):
        if colon:
            raise FieldError("ladder", "{text}: {kind} takes no lengths", text=quoted(text), kind=kind)
        return Choice(text, kind)
    rule = next((each for each in RULES if each.name == kind), None)
    if rule is None:
        raise FieldError(
            "ladder",
            "{text} is unknown; allowed: {examples}; rules are {rules}",
            text=quoted(text),
            examples=EXAMPLES,
            rules=", ".join(each.name for each in RULES),
        )
    if colon and not rest:
        raise FieldError("ladder", "{text}: no lengths after the colon; remove it, or give lengths", text=quoted(text))
    lengths = tuple(_length(part) for part in rest.split(",")) if rest else ()
    if len(lengths) >= MOST_SETS:
        raise FieldError(
            "ladder",
            "{count} lengths plus the native window; at most {most} sets are allowed",
            count=len(lengths),
            most=MOST_SETS,
        )
    return Choice(text, kind, rule, lengths)


def from_flags(ladder: str | None, factors: str | None) -> Choice | None:
    """Return the choice that ``--ladder`` or ``--factors`` makes; None if neither was given, an error if both were."""
    if factors is None:
        return None if ladder is None else parse(ladder)
    if ladder is not None:
        raise UsageError(f"--factors: {factors!r} and --ladder {ladder!r} both name a ladder; give one of them")
    return Choice(f"{FILE}:{factors}", FILE, path=factors)


def _length(text: str) -> int | float:
    if text.strip().endswith("x"):
        return number("ladder", text.strip()[:-1], 1, 1e6, "a multiple of the native window, such as 4x")
    return parse_length("ladder", text)
