"""Checks the values of vLLM's flags by kind, as vLLM's parser does; errors name the allowed values."""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ropeswitch.factors.quoted import quoted

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_SIZE_IN_JSON = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_SCALE = {letter: 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)} | {
    letter: 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)
}
Check = Callable[[str], Any]


@dataclass(frozen=True)
class Span:
    """A range of numbers from ``least`` to ``most``, both included unless excluded; None for an open end."""

    least: float | None = None
    most: float | None = None
    least_excluded: bool = False
    most_excluded: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number lies in the span; NaN lies in none."""
        above = self.least is None or (value > self.least if self.least_excluded else value >= self.least)
        below = self.most is None or (value < self.most if self.most_excluded else value <= self.most)
        return above and below

    def text(self) -> str:
        """Return the span in words, such as ``at least 1``."""
        parts = []
        if self.least is not None:
            parts.append(f"{'greater than' if self.least_excluded else 'at least'} {self.least:g}")
        if self.most is not None:
            parts.append(f"{'less than' if self.most_excluded else 'at most'} {self.most:g}")
        return " and ".join(parts)


def one_of(names: Sequence[str]) -> str:
    """Return names as a list of choices: ``a, b or c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def nearest(name: str, names: Sequence[str]) -> str:
    """Return ``; did you mean a or b?`` with the names that ``name`` may misspell; empty if none is close."""
    near = get_close_matches(name, names, n=3, cutoff=0.75) or get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {one_of(near)}?" if near else ""


def _text(text: str) -> str:
    return text


def _int(text: str) -> int:
    return _number(int, text, "a whole number")


def _float(text: str) -> float:
    return _number(float, text, "a number")


def _number(kind: Callable[[str], Any], text: str, allowed: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)} must be {allowed}") from error


def _size(text: str, allowed: str = "a whole number, such as 65536, 64k (64,000) or 64K (65,536)") -> int:
    match = _SIZE.fullmatch(text.strip())
    # Capital letters stand for powers of 1024 and take whole numbers only.
    if match and (match[2].islower() or "." not in match[1]):
        return int(float(match[1]) * _SCALE[match[2]]) if match[2].islower() else int(match[1]) * _SCALE[match[2]]
    return int(_number(int, text, allowed))


def _length(text: str) -> int:
    if text.strip().lower() in ("-1", "auto"):
        return -1
    return max_model_len(text)


LENGTH = "a number of tokens, such as 131072, 128k (128,000) or 128K (131,072)"


def max_model_len(text: str, allowed: str = f"{LENGTH}, or auto") -> int:
    """Parse a value of ``--max-model-len`` in tokens; ``allowed`` is for the message.

    Raises:
        argparse.ArgumentTypeError: for text that is no number of tokens.
    """
    return _size(text, allowed)


def _json(text: str, allowed: str = "JSON") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)} must be {allowed}: {error}") from error


def _object(text: str) -> dict[str, Any]:
    parts = _QUOTED.split(text)
    parts[::2] = [_SIZE_IN_JSON.sub("0", part) for part in parts[::2]]
    value = _json("".join(parts), "a JSON object")
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{quoted(text)} must be a JSON object")
    return value


def _text_or_object(text: str) -> Any:
    return _json(text) if re.match(r"(?s)^\s*{.*}\s*$", text) else text


def _folded(text: str) -> str:
    return text.lower().replace("-", "_")


KINDS: dict[str, Check] = {
    "text": _text,
    "int": _int,
    "float": _float,
    "size": _size,
    "length": _length,
    "json": _json,
    "object": _object,
    "text or object": _text_or_object,
    "folded": _folded,
}


def checker(
    kind: str, *, optional: bool, choices: Sequence[Any] | None, keys: Sequence[str] | None, span: Span | None
) -> Check:
    """Make a flag's ``type`` for argparse.

    Args:
        kind: A key of :data:`KINDS`.
        optional: Whether an empty value and ``None`` mean no value.
        choices: The values allowed, or None for any of the kind.
        keys: The keys allowed in an object, or None for any.
        span: The numbers allowed, or None for any.
    """
    parse = KINDS[kind]

    def check(text: str) -> Any:
        if optional and text in ("", "None"):
            return None
        value = parse(text)
        if choices is not None and value not in choices:
            named = [str(each) for each in choices if each is not None]
            raise argparse.ArgumentTypeError(f"{quoted(text)} must be {one_of(named)}{nearest(text, named)}")
        if keys is not None:
            for key in value.keys() - set(keys):
                named = [each for each in keys if not each.startswith("_")]
                hint = nearest(key, named) or f"; the keys are {', '.join(named)}"
                raise argparse.ArgumentTypeError(f"unknown key {quoted(key)}{hint}")
        if span is not None and not span.holds(value):
            raise argparse.ArgumentTypeError(f"{quoted(text)} must be {span.text()}")
        return value

    return check
