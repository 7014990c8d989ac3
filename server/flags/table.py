"""The table of vLLM's flags, recorded from the parser of the pinned vLLM (``record.py``), and a parser built from it."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ropeswitch.factors.parser import Parser
from ropeswitch.server.flags.kinds import Span, checker


@dataclass(frozen=True)
class Flag:
    """One flag of vLLM's parser.

    Attributes:
        flags: Its name and aliases; empty for MODEL.
        dest: Its name in the namespace.
        action: ``store``, ``append``, ``true``, or ``bool`` for a flag with a ``--no-`` form.
        nargs: argparse's ``nargs``; None for one value.
        kind: The kind of its values, a key of :data:`~ropeswitch.server.flags.kinds.KINDS`.
        optional: Whether an empty value and ``None`` mean no value.
        choices: The values allowed, or None.
        keys: The keys allowed in an object, or None.
        span: The numbers allowed, or None.
        names: vLLM's own values of a text flag that plugins may extend; empty for other flags.
        default: Its default if that is a number, a text or a boolean; else None.
    """

    flags: tuple[str, ...]
    dest: str
    action: str
    nargs: str | None
    kind: str
    optional: bool
    choices: tuple[Any, ...] | None
    keys: tuple[str, ...] | None
    span: Span | None
    names: tuple[str, ...]
    default: str | float | bool | None


@cache
def read_table() -> tuple[Flag, ...]:
    """Return the recorded flags of ``vllm serve``."""
    text = files(__package__).joinpath("table.json").read_text(encoding="utf-8")
    return tuple(_flag(row) for row in json.loads(text)["flags"])


def _flag(row: dict[str, Any]) -> Flag:
    span = row.get("span")
    return Flag(
        flags=tuple(row["flags"]),
        dest=row["dest"],
        action=row["action"],
        nargs=row.get("nargs"),
        kind=row.get("kind", "text"),
        optional=row.get("optional", False),
        choices=tuple(row["choices"]) if "choices" in row else None,
        keys=tuple(row["keys"]) if "keys" in row else None,
        span=Span(**span) if span else None,
        names=tuple(row.get("names", ())),
        default=row.get("default"),
    )


def make_parser(flags: Sequence[Flag], add_flags: Callable[[Any], None]) -> Parser:
    """Build a parser of these flags and those that ``add_flags`` adds to it."""
    parser = Parser(prog="ropeswitch serve", add_help=False, exit_on_error=False)
    parser.add_argument("-h", "--help", action="store_true")
    for flag in flags:
        _add(parser, flag)
    add_flags(parser)
    return parser


def _add(parser: Parser, flag: Flag) -> None:
    names: dict[str, Any] = {"dest": flag.dest} if flag.flags else {}
    words = flag.flags or (flag.dest,)
    if flag.action == "bool":
        # argparse adds the --no- forms itself.
        words = tuple(word for word in flag.flags if not word.startswith("--no-"))
        parser.add_argument(*words, **names, action=argparse.BooleanOptionalAction, default=flag.default)
    elif flag.action == "true":
        parser.add_argument(*words, **names, action="store_true")
    else:
        check = checker(flag.kind, optional=flag.optional, choices=flag.choices, keys=flag.keys, span=flag.span)
        parser.add_argument(*words, **names, action=flag.action, nargs=flag.nargs, type=check, default=flag.default)
