"""Figures as people read them: three digits, with a unit; a dash for what there is none of."""

from math import isfinite

NONE = "\u2013"


def milliseconds(value: float | None) -> str:
    """A latency of ``results.json``: ``0 ms``, ``0.531 ms``, ``24.1 ms``, ``1.25 s``, ``184 s``."""
    if value is None or not isfinite(value) or value < 0:
        return NONE
    if value < 0.0005:
        return "0 ms"
    return f"{digits(value)} ms" if value < 999.5 else f"{digits(value / 1000)} s"


def digits(value: float | None) -> str:
    """A number with three digits, and thousands apart: ``0.123``, ``12.3``, ``1,235``."""
    if value is None or not isfinite(value):
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{places}f}"


def whole(value: float | None) -> str:
    """A count with thousands apart."""
    return NONE if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """``99.5 %``; only what is all of it is ``100 %``, and only what is nothing ``0 %``."""
    if value is None:
        return NONE
    if value in (0, 1):
        return f"{value:.0%}".replace("%", " %")
    return f"{min(max(100 * value, 0.1), 99.9):.1f} %"


def times(value: float | None) -> str:
    """A ratio, with a multiplication sign."""
    return NONE if value is None else f"{digits(value)}\u00d7"


def plural(number: int, word: str) -> str:
    """``1 request``, ``1,200 requests``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
