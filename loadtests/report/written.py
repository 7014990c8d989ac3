"""Formats figures for people: three digits with a unit, and a dash for a missing value."""

from math import isfinite

NONE = "\u2013"


def milliseconds(value: float | None) -> str:
    """Format a latency of ``results.json``: ``0 ms``, ``0.531 ms``, ``24.1 ms``, ``1.25 s``, ``184 s``."""
    if value is None or not isfinite(value) or value < 0:
        return NONE
    if value < 0.0005:
        return "0 ms"
    return f"{digits(value)} ms" if value < 999.5 else f"{digits(value / 1000)} s"


def digits(value: float | None) -> str:
    """Format a number with three digits and separated thousands: ``0.123``, ``12.3``, ``1,235``."""
    if value is None or not isfinite(value):
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{places}f}"


def whole(value: float | None) -> str:
    """Format a count with separated thousands."""
    return NONE if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Format a share: ``99.5 %``; only exactly 1 is ``100 %``, and only exactly 0 is ``0 %``."""
    if value is None:
        return NONE
    if value in (0, 1):
        return f"{value:.0%}".replace("%", " %")
    return f"{min(max(100 * value, 0.1), 99.9):.1f} %"


def times(value: float | None) -> str:
    """Format a ratio, followed by a multiplication sign."""
    return NONE if value is None else f"{digits(value)}\u00d7"


def plural(number: int, word: str) -> str:
    """Format a count with its noun: ``1 request``, ``1,200 requests``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
