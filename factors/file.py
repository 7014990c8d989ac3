"""Reads and writes factor files: ladders as JSON, in the format of docs/factors.md and factor_file.schema.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.numbers import positive_value
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.strict_json import object_from_json, read_text
from ropeswitch.factors.whole_file import save_text

FORMAT = "ropeswitch-factors/1"
FIELDS = ("format", "description", "rope_theta", "sets")


@dataclass(frozen=True)
class LadderFile:
    """The content of a factor file.

    Attributes:
        ladder: The factor sets.
        theta: Rotary base that the factors were made for; None if the file does not name one, so the model's is used.
        description: Free text for people: which model, which source.
    """

    ladder: FactorLadder
    theta: float | None = None
    description: str | None = None


def load(path: str | Path) -> LadderFile:
    """Read the factor file at ``path``.

    Raises:
        FactorError: naming the file, the field, the value and what is allowed.
    """
    try:
        return parse(read_text(path))
    except FactorError as error:
        raise FactorError(f"factor file {str(path)!r}: {error}") from error


def parse(text: str) -> LadderFile:
    """Parse and check the text of a factor file.

    Raises:
        FactorError: naming the field, the value and what is allowed, or the line and column of a JSON syntax error.
    """
    return from_values(object_from_json(text))


def from_values(values: Mapping[str, Any]) -> LadderFile:
    """Build a :class:`LadderFile` from a parsed JSON object; errors as in :func:`parse`."""
    if unknown := sorted(set(values) - set(FIELDS)):
        raise FactorError(f"{quoted(unknown[0])}: unknown field; allowed: {', '.join(FIELDS)}")
    if values.get("format") != FORMAT:
        found = quoted(values["format"]) if "format" in values else "missing"
        raise FactorError(f"format: {found}; this version reads {FORMAT!r}")
    if "sets" not in values:
        raise FactorError("sets: missing")
    return LadderFile(FactorLadder.checked(values["sets"]), _theta(values), _description(values))


def save(path: str | Path, content: LadderFile, *, overwrite: bool = False) -> None:
    """Write ``content`` to ``path`` atomically: the file appears under its name only when it is complete.

    Raises:
        FactorError: when the file exists and ``overwrite`` is False, or when it cannot be written.
    """
    save_text(path, to_text(content), overwrite=overwrite)


def to_text(content: LadderFile) -> str:
    """Format a factor file, one line per set; :func:`parse` restores ``content`` exactly.

    Raises:
        FactorError: when :func:`load` would reject ``content``.
    """
    lines = [f'  "format": {json.dumps(FORMAT)}']
    if content.description is not None:
        lines.append(f'  "description": {json.dumps(content.description)}')
    if content.theta is not None:
        lines.append(f'  "rope_theta": {json.dumps(content.theta)}')
    sets = ",\n".join("    " + json.dumps(factor_set) for factor_set in content.ladder.to_json())
    lines.append(f'  "sets": [\n{sets}\n  ]')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    parse(text)
    return text


def _theta(values: Mapping[str, Any]) -> float | None:
    if "rope_theta" not in values:
        return None
    return positive_value("rope_theta", values["rope_theta"], "a number greater than 0")


def _description(values: Mapping[str, Any]) -> str | None:
    description = values.get("description", "")
    if not isinstance(description, str):
        raise FactorError(f"description: {quoted(description)} must be a string")
    return description if "description" in values else None
