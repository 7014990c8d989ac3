"""Reads and writes factor files: ladders as JSON, in the format of docs/factors.md and factor_file.schema.json."""

import json
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.files import object_from_json, read_text, save_text
from ropeswitch.factors.numbers import positive_value
from ropeswitch.factors.quoted import quoted

FORMAT = "ropeswitch-factors/1"
FIELDS = ("format", "description", "rope_theta", "sets")


@dataclass(frozen=True)
class LadderFile:
    """The content of a factor file: the sets, the rotary base that they were made for, and free text.

    Without a base, the model's is used.
    """

    ladder: FactorLadder
    theta: float | None = None
    description: str | None = None


def load(path: str | Path) -> LadderFile:
    """Read the factor file at ``path``; a FactorError names the file, the field, the value and what is allowed."""
    try:
        return parse(read_text(path))
    except FactorError as error:
        raise FactorError(f"factor file {str(path)!r}: {error}") from error


def parse(text: str) -> LadderFile:
    """Parse and check the text of a factor file; a FactorError names the field, or the line and column."""
    values = object_from_json(text)
    if unknown := sorted(set(values) - set(FIELDS)):
        raise FactorError(f"{quoted(unknown[0])}: unknown field; allowed: {', '.join(FIELDS)}")
    if values.get("format") != FORMAT:
        found = quoted(values["format"]) if "format" in values else "missing"
        raise FactorError(f"format: {found}; this version reads {FORMAT!r}")
    if "sets" not in values:
        raise FactorError("sets: missing")
    ladder, theta = FactorLadder.checked(values["sets"]), None
    if "rope_theta" in values:
        theta = positive_value("rope_theta", values["rope_theta"], "a number greater than 0")
    if not isinstance(values.get("description", ""), str):
        raise FactorError(f"description: {quoted(values['description'])} must be a string")
    return LadderFile(ladder, theta, values.get("description"))


def save(path: str | Path, content: LadderFile, *, overwrite: bool = False) -> None:
    """Write ``content`` to ``path`` atomically; FactorError when the file exists and ``overwrite`` is False."""
    save_text(path, to_text(content), overwrite=overwrite)


def to_text(content: LadderFile) -> str:
    """Format a factor file, one line per set; :func:`parse` restores ``content`` exactly."""
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
