"""Imports published factors: the CSV files of the LongRoPE repository, and Hugging Face configs.

A CSV file has one factor per line, or one comma-separated row of factors per layer
(https://github.com/microsoft/LongRoPE, ``script/longrope_scale``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.file import LadderFile
from ropeswitch.factors.files import object_from_json, read_text
from ropeswitch.factors.hf_config import attention_factor, ladder_from_config, rope_parameters
from ropeswitch.factors.numbers import number_value
from ropeswitch.factors.places import check_places
from ropeswitch.factors.quoted import quoted

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

SCALE_CHOICES = (
    "'none' for 1, as in the LongRoPE paper; 'longrope' for sqrt(1 + ln(end / original) / ln(original)), as in the "
    "LongRoPE repository's code and the published Phi models; or a number"
)


@dataclass(frozen=True)
class CsvSet:
    """One factor set to import: its name, its ``max_length`` in tokens, and the path of its CSV file."""

    name: str
    max_length: int
    path: str


def ladder_from_csv(
    sets: Sequence[CsvSet], *, scale: str | None, start_tokens: int, original_length: int | None
) -> FactorLadder:
    """Build a ladder from CSV files, by increasing length.

    ``scale`` is ``none``, ``longrope`` or a number. For ``longrope``, ``original_length`` is the model's original window in
    tokens, and the extended length is the ladder's end, so all sets get the same scale, as in Hugging Face.

    Raises FactorError, naming the flag, or the file, line and value, and what is allowed.
    """
    multiplier = _scale(scale, original_length, max(each.max_length for each in sets))
    common = {"scale": multiplier, "start_tokens": start_tokens}
    values = []
    for each in sets:
        first, *others = rows = read_csv(each.path)
        layers = [{"factors": row, "scale": multiplier} for row in rows] if set(others) - {first} else []
        own = {"name": each.name, "max_length": each.max_length, "factors": first}
        values.append(own | common | ({"layers": layers} if layers else {}))
    try:
        return FactorLadder.checked(values)
    except FactorError as error:
        order = ", ".join(f"sets[{index}] is {each.path}" for index, each in enumerate(sets))
        raise FactorError(f"{error} ({order})") from error


def read_csv(path: str | Path) -> list[tuple[float, ...]]:
    """Read the factors of one CSV file, ``[layers, factors]``: a row per layer, or one layer with a factor per line.

    A FactorError names the file, line and value.
    """
    try:
        return _factors(read_text(path))
    except FactorError as error:
        raise FactorError(f"{str(path)!r}: {error}") from error


def ladder_file_from_config(path: str | Path) -> LadderFile:
    """Read ladder and rotary base of a Hugging Face ``config.json``, or of the one in the folder ``path``."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        config = object_from_json(read_text(file))
        check_places(config)
        text_config = config.get("text_config")
        if isinstance(text_config, Mapping):
            config = dict(text_config)
        ladder = ladder_from_config(config)
        if ladder is None:
            found = quoted(rope_parameters(config)["rope_type"])
            raise FactorError(f"rope_type: {found}; only 'longrope' and 'su' configs contain factors to import")
        theta = rope_parameters(config).get("rope_theta")
        theta = None if theta is None else number_value("rope_theta", theta)
    except FactorError as error:
        raise FactorError(f"{str(file)!r}: {error}") from error
    return LadderFile(ladder, theta)


def _factors(text: str) -> list[tuple[float, ...]]:
    rows = [_row(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not rows:
        raise FactorError("contains no factors")
    if all(len(row) == 1 for row in rows):
        return [tuple(row[0] for row in rows)]
    if odd := next((row for row in rows if len(row) != len(rows[0])), None):
        raise FactorError(f"has rows of {len(rows[0])} and {len(odd)} factors; each layer must have as many")
    return rows


def _row(number: int, line: str) -> tuple[float, ...]:
    cells = [cell.strip() for cell in line.split(",")]
    for column, cell in enumerate(cells, start=1):
        if not NUMBER.fullmatch(cell) or not 0 < float(cell) < float("inf"):
            raise FactorError(f"line {number}, value {column}: {quoted(cell)} must be a finite number greater than 0")
    return tuple(map(float, cells))


def _scale(choice: str | None, original_length: int | None, end: int) -> float:
    if choice is None:
        raise FactorError(f"--scale: missing; CSV files do not contain it. Give {SCALE_CHOICES}")
    if choice == "none":
        return 1.0
    if choice == "longrope":
        if original_length is None or original_length < 2:
            raise FactorError(
                f"--original-length: {original_length or 'missing'}; --scale longrope needs the model's original window, at "
                "least 2 tokens"
            )
        return attention_factor({}, original_length, end)
    if not NUMBER.fullmatch(choice):
        raise FactorError(f"--scale: {quoted(choice)} is not a scale; give {SCALE_CHOICES}")
    return float(choice)
