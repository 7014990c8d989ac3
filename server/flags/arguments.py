"""Rewrites command-line arguments as vLLM's parser does before argparse sees them, without importing vLLM.

vLLM replaces ``--config FILE`` by the file's flags, reads underscores in flag names as dashes and ``-O3`` as
``--optimization-level 3``, and makes ``--flag.key value`` a key of the JSON object of ``--flag``.
"""

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.quoted import quoted

CONFIG = "--config"
# Negative numbers that argparse accepts as a flag's value only after an equals sign, unlike whole numbers.
_NEGATIVE = re.compile(r"-(\d+\.\d*|\.\d+|\d+(?=e)|inf|nan)(e[+-]?\d+)?", re.IGNORECASE)
_NAME = re.compile(r"(?<=--)[^.]*")
# What a YAML error quotes from the file: a value that begins with * or ! is read as one of these.
_FROM_FILE = re.compile(r"\b(alias|tag(?: handle)?) .*", re.DOTALL)
_LEVELS = ("0", "1", "2", "3")


@dataclass(frozen=True)
class Arguments:
    """Arguments for argparse.

    Attributes:
        words: The arguments, including those of the config file.
        config: Path of the ``--config`` file, or None.
        from_config: Names of the flags that the config file sets.
    """

    words: list[str]
    config: str | None
    from_config: frozenset[str]


def joined(arguments: Sequence[str]) -> list[str]:
    """Write ``--flag -0.5`` as ``--flag=-0.5``, and ``--config=FILE`` as ``--config FILE``.

    vLLM mistakes such a number for the name of a nested field, and never reads a file after an equals sign.
    """
    done: list[str] = []
    for argument in arguments:
        if done and done[-1].startswith("--") and _NEGATIVE.fullmatch(argument):
            done[-1] += f"={argument}"
        elif argument.startswith(f"{CONFIG}="):
            done += argument.split("=", 1)
        else:
            done.append(argument)
    return done


def rewrite(argv: Sequence[str], flags: Container[str]) -> Arguments:
    """Rewrite arguments as vLLM's parser does.

    Args:
        argv: The arguments after ``ropeswitch serve``.
        flags: Every flag with its aliases.

    Raises:
        UsageError: for a config file that cannot be read, or a nested flag without a value.
    """
    words, config = joined(argv), None
    set_there: list[str] = []
    if CONFIG in words:
        words, config, set_there = _with_config(words, flags)
    words = _nested(_plain(words))
    names = frozenset(_plain([word])[0].partition("=")[0] for word in set_there if word.startswith("--"))
    return Arguments(words, config, names)


def _with_config(words: list[str], flags: Container[str]) -> tuple[list[str], str, list[str]]:
    index = words.index(CONFIG)
    if words.count(CONFIG) > 1:
        raise UsageError(f"{CONFIG}: given {words.count(CONFIG)} times; name one file")
    if index == len(words) - 1:
        raise UsageError(f"{CONFIG}: a value is missing; it must be the path of a YAML file")
    path = words[index + 1]
    added = joined(read_config(path, flags))
    rest = [*words[:index], *words[index + 2 :]]
    # The command line comes later, so it overrides the file; MODEL stays first.
    place = 0 if words[0].startswith("-") else 1
    return [*rest[:place], *added, *rest[place:]], path, added


def read_config(path: str, flags: Container[str]) -> list[str]:
    """Return the arguments that a ``--config`` file stands for.

    Args:
        path: Path of the file, a YAML mapping from flag names, without their dashes, to values.
        flags: Every flag with its aliases.

    Raises:
        UsageError: naming the file and what is wrong with it.
    """
    import yaml

    name = f"{CONFIG}: {path!r}"
    if path.split(".")[-1] not in ("yaml", "yml"):
        raise UsageError(f"{name} must be a file whose name ends in .yaml or .yml")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{name} is not valid YAML: {_problem(error)}") from None
    if not isinstance(content, dict):
        # Not its content, which may hold a key.
        raise UsageError(
            f"{name} must hold a mapping from flags to values, such as 'port: 8000'; found a {type(content).__name__}"
        )
    words: list[str] = []
    for key, value in content.items():
        if not isinstance(key, str):
            raise UsageError(f"{name}: {quoted(key)} must be the name of a flag, without its dashes")
        words += _config_words(key, value, flags)
    return words


def _problem(error: Exception) -> str:
    """Describe why a config file cannot be parsed, without its content, which may hold a key."""
    import yaml

    if not isinstance(error, yaml.MarkedYAMLError):
        return type(error).__name__
    at = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
    return at + _FROM_FILE.sub(r"\1", str(error.problem or error.context))


def _config_words(key: str, value: Any, flags: Container[str]) -> list[str]:
    flag = f"--{key}"
    if isinstance(value, bool):
        negated = f"--no-{key}"
        return [flag] if value else [negated] if negated in flags else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    return [flag, json.dumps(value, default=str) if isinstance(value, dict) else str(value)]


def _plain(words: Sequence[str]) -> list[str]:
    """Return the arguments with dashes for the underscores in flag names, and ``-O3`` written out."""
    done: list[str] = []
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            done.append(_NAME.sub(lambda match: match[0].replace("_", "-"), name, count=1) + equals + value)
        elif word.startswith("-O") and word != "-O":
            done += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O" and index + 1 < len(words) and words[index + 1] in _LEVELS:
            done.append("--optimization-level")
        else:
            done.append(word)
    return done


def _nested(words: Sequence[str]) -> list[str]:
    """Return the arguments with each ``--flag.key value`` put into ``--flag '{"key": null}'`` at the end, values omitted."""
    done: list[str] = []
    objects: dict[str, dict[str, None]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if not (word.startswith("-") and "." in name):
            done.append(word)
            continue
        if not equals and next(rest, None) is None:
            raise UsageError(f"{name}: a value is missing")
        flag, key, *_ = name.removesuffix("+").split(".")
        objects.setdefault(flag, {})[key] = None
    for flag, value in objects.items():
        done += [flag, json.dumps(value)]
    return done
