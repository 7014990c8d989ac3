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
from ropeswitch.factors.hf_config import attention_factor, ladder_from_config, rope_parameters
from ropeswitch.factors.numbers import number_value
from ropeswitch.factors.places import check_places
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.strict_json import object_from_json, read_text

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
    sets: Sequence[CsvSet],
    *,
    scales: Mapping[str, str],
    start_tokens: Mapping[str, int],
    original_length: int | None,
) -> FactorLadder:
    """Build a ladder from factors in CSV files.

    Args:
        sets: Sets to import, by increasing length.
        scales: ``none``, ``longrope`` or a number, by set name; the key ``""`` applies to all other sets.
        start_tokens: Positions that keep the unscaled angles, by set name; the key ``""`` applies to all other sets, whose
            default is 0.
        original_length: Original window of the model in tokens; required by ``longrope``. The extended length in its
            formula is the ladder's end, so all sets get the same scale, as in Hugging Face.

    Raises:
        FactorError: naming the flag, or the file, line and value, and what is allowed.
    """
    names = {factor_set.name for factor_set in sets}
    for flag, by_name in (("--scale", scales), ("--start-tokens", start_tokens)):
        if unknown := sorted(set(by_name) - names - {""}):
            raise FactorError(f"{flag}: no --set is named {unknown[0]!r}; the sets are {', '.join(sorted(names))}")
    if not sets:
        raise FactorError("--set: give at least one")
    end = max(factor_set.max_length for factor_set in sets)
    values = [
        {
            "name": factor_set.name,
            "max_length": factor_set.max_length,
            "factors": read_csv(factor_set.path),
            "scale": _scale(factor_set.name, scales, original_length, end),
            "start_tokens": start_tokens.get(factor_set.name, start_tokens.get("", 0)),
        }
        for factor_set in sets
    ]
    try:
        return FactorLadder.checked(values)
    except FactorError as error:
        order = ", ".join(f"sets[{index}] is {factor_set.path}" for index, factor_set in enumerate(sets))
        raise FactorError(f"{error} ({order})") from error


def read_csv(path: str | Path) -> tuple[float, ...]:
    """Read the factors of one CSV file: one per line, or equal rows, one per layer.

    Raises:
        FactorError: naming the file, and the line and value that is not a number, or the first value that differs between
            layers, because one ladder serves all layers.
    """
    try:
        return _factors(read_text(path))
    except FactorError as error:
        raise FactorError(f"{str(path)!r}: {error}") from error


def ladder_file_from_config(path: str | Path) -> LadderFile:
    """Read the ladder and rotary base of a Hugging Face ``config.json``, or of the one in the folder ``path``.

    Raises:
        FactorError: when the file is invalid or has no LongRoPE factors.
    """
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


def _factors(text: str) -> tuple[float, ...]:
    rows = [(number, _row(number, line)) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not rows:
        raise FactorError("contains no factors")
    if all(len(row) == 1 for _, row in rows):
        return tuple(row[0] for _, row in rows)
    first_number, first = rows[0]
    for number, row in rows[1:]:
        if len(row) != len(first):
            raise FactorError(f"line {number}: {len(row)} values, but line {first_number} has {len(first)}")
        for column, (here, there) in enumerate(zip(row, first, strict=True), start=1):
            if here != there:
                raise FactorError(
                    f"line {number}, value {column}: {here} differs from {there} in line {first_number}; "
                    "lines are layers, and factors must be the same in all layers"
                )
    return first


def _row(number: int, line: str) -> tuple[float, ...]:
    cells = [cell.strip() for cell in line.split(",")]
    for column, cell in enumerate(cells, start=1):
        if not NUMBER.fullmatch(cell) or not 0 < float(cell) < float("inf"):
            raise FactorError(f"line {number}, value {column}: {quoted(cell)} must be a finite number greater than 0")
    return tuple(map(float, cells))


def _scale(name: str, scales: Mapping[str, str], original_length: int | None, end: int) -> float:
    choice = scales.get(name, scales.get(""))
    if choice is None:
        raise FactorError(f"--scale: missing for set {name!r}; CSV files do not contain it. Give {SCALE_CHOICES}")
    if choice == "none":
        return 1.0
    if choice == "longrope":
        if original_length is None:
            raise FactorError(
                "--original-length: missing; --scale longrope needs the model's original window, in tokens"
            )
        if original_length < 2:
            raise FactorError(f"--original-length: {original_length} must be at least 2")
        return attention_factor({}, original_length, end)
    if not NUMBER.fullmatch(choice):
        raise FactorError(f"--scale: {quoted(choice)} is not a scale; give {SCALE_CHOICES}")
    return float(choice)
