"""Checks the command line against a recorded table of vLLM's flags, because importing vLLM's own parser takes 15 s."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.parser import Parser
from ropeswitch.server.flags.arguments import Arguments, rewrite
from ropeswitch.server.flags.kinds import nearest, one_of
from ropeswitch.server.flags.table import make_parser, read_table

_AMBIGUOUS = re.compile(r"ambiguous option: (?P<flag>[^ =]+)\S* could match (?P<matches>.+)")
_CHOICE = re.compile(r"invalid choice: '(?P<value>.*)' \(choose from .*\)")
_IGNORED = re.compile(r"ignored explicit argument (?P<value>.*)")
# Maximum number of flags that a message lists.
MOST_NAMES = 6
# Flags of earlier vLLM versions, and what replaces them.
_GONE = {
    "--allow-ladder-updates": "a ladder is fixed at startup; roll out replicas with another one",
    "--task": "use --runner pooling for embedding, reranking and reward models, with --convert where needed",
    "--rope-scaling": (
        "vLLM removed it in 0.11.1. Use --max-model-len LENGTH: each request beyond the model's window is scaled for its "
        "own length (--ladder yarn, or another rule)"
    ),
    "--rope-theta": (
        "vLLM removed it in 0.11.1. The base is read from the model's config; to change it, use "
        """--hf-overrides '{"rope_parameters": {"rope_type": "default", "rope_theta": NUMBER}}'"""
    ),
}


def parse(argv: Sequence[str], add_flags: Callable[[Any], None]) -> argparse.Namespace:
    """Parse the arguments of ``ropeswitch serve`` without importing vLLM.

    Accepts everything that vLLM's parser accepts. Nested values of JSON flags, and types that only vLLM can check, are not
    checked here; the namespace has them as text.

    Args:
        argv: The arguments after ``ropeswitch serve``.
        add_flags: Adds our own flags to a parser.

    Returns:
        The flags, with ``model_tag`` for MODEL.

    Raises:
        UsageError: naming the flag, its value and what is allowed.
    """
    parser = make_parser(read_table(), add_flags)
    # Unlike in vLLM: if no model is named, the bundled one is served.
    parser.set_defaults(model=None)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    arguments = rewrite(argv, flags)
    try:
        namespace, unknown = parser.parse_known_args(arguments.words)
    except argparse.ArgumentError as error:
        raise UsageError(_message(parser, arguments, error)) from error
    except UsageError as error:
        match = _AMBIGUOUS.search(str(error))
        if match is None:
            raise
        names = one_of(match["matches"].split(", ")[:MOST_NAMES])
        raise UsageError(f"{match['flag']}: ambiguous flag; did you mean {names}?") from error
    if unknown:
        raise UsageError(_unknown(unknown, flags, namespace, arguments))
    return namespace


def _message(parser: Parser, arguments: Arguments, error: argparse.ArgumentError) -> str:
    flag, _, _ = (error.argument_name or "").partition("/")
    name = flag + _source(arguments, flag)
    if error.message.startswith("expected "):
        return f"{name}: a value is missing{_example(parser, flag)}"
    if match := _IGNORED.fullmatch(error.message):
        negated = f"--no-{flag.removeprefix('--')}"
        forms = f"{flag} or {negated}" if negated in parser._option_string_actions else flag
        return f"{name}: takes no value, found {match['value']}; write {forms}"
    if match := _CHOICE.fullmatch(error.message):
        choices = [str(each) for each in parser._option_string_actions[flag].choices or ()]
        return f"{name}: {match['value']!r} must be {one_of(choices)}"
    return f"{name}: {error.message}"


def _example(parser: Parser, flag: str) -> str:
    """Return the values that a flag allows, as its error for an invalid value lists them; empty if it lists none."""
    action = parser._option_string_actions[flag]
    try:
        if callable(action.type):
            action.type("?")
    except argparse.ArgumentTypeError as error:
        _, found, allowed = str(error).partition("'?' must be ")
        return f"; it must be {allowed}" if found else ""
    return f"; it must be {one_of([str(each) for each in action.choices])}" if action.choices else ""


def _unknown(unknown: Sequence[str], flags: Sequence[str], known: argparse.Namespace, arguments: Arguments) -> str:
    flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if flag is None:
        if known.model_tag is None:
            # argparse takes MODEL in one place only.
            return f"MODEL: {unknown[0]!r} must come before the flags"
        return f"{unknown[0]!r}: unexpected argument after MODEL {known.model_tag!r}; flag names begin with --"
    hint = f"; {_GONE[flag]}" if flag in _GONE else nearest(flag, flags)
    return f"{flag}{_source(arguments, flag)}: unknown flag{hint or '; ropeswitch serve --help=all lists every flag'}"


def _source(arguments: Arguments, flag: str) -> str:
    return f" (in --config {arguments.config})" if flag in arguments.from_config else ""
