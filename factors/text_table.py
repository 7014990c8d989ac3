"""Formats plain-text tables."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows with the same number of cells as left-aligned columns; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
