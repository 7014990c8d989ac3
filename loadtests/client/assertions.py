"""Parses and checks ``--assert`` and latency objectives, such as ``band=0-8k,ttft_p99<0.5``. Times are in seconds."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.bands import Band, band

LATENCIES = ("ttft", "tpot", "itl", "e2el", "lateness", "ttft_due")
STATISTICS = ("mean", "median", "std", "p90", "p95", "p99", "max")
# Figures other than latencies: name in assertions, and key in results.json. Each share is of the requests it applies to.
NUMBERS = {
    name: name
    for name in (
        "completed", "failed", "cancelled", "wrong", "miscounted", "crossings", "request_throughput", "output_throughput",
        "total_token_throughput",
    )
} | {"correct": "correct_share", "good": "good_share"}  # fmt: skip
OBJECTIVES = ("ttft", "tpot", "e2el")
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}


@dataclass(frozen=True)
class Limit:
    """One comparison of a figure, or of its ratio to the baseline's; ``scale`` converts milliseconds to seconds."""

    text: str
    key: str
    scale: float
    ratio: bool
    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        """Return whether a value satisfies the limit."""
        return bool(SIGNS[self.sign](value, self.bound))


@dataclass(frozen=True)
class Assertion:
    """Limits on the figures of one band, or of all requests together.

    All ``limits`` must hold; ``band`` is None for all requests.
    """

    text: str
    band: Band | None
    limits: tuple[Limit, ...]

    @staticmethod
    def parse(text: str) -> "Assertion":
        """Parse an assertion as given to ``--assert``; raises UsageError for an unknown figure."""
        where, rest = _band(text)
        if not rest:
            raise UsageError(f"assertion {text!r} has no limit: add one, as in band=0-8k,ttft_p99<0.5")
        return Assertion(text, where, tuple(_limit(part) for part in rest))

    def check(self, figures: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Return the outcome of each limit: ``text``, ``value`` (None if the figure has none) and ``ok``."""
        ours, theirs = _of_band(figures, self.band), _of_band(baseline, self.band)
        checked = []
        for limit in self.limits:
            value = _value(limit, ours, theirs)
            text = f"band={self.band},{limit.text}" if self.band else limit.text
            checked.append({"text": text, "value": value, "ok": value is not None and limit.holds(value)})
        return checked


@dataclass(frozen=True)
class Slo:
    """A latency objective: upper bounds in seconds for the requests of one band, or for all.

    ``bounds`` are by ``ttft``, ``tpot`` or ``e2el``; ``band`` is None for all requests.
    """

    text: str
    band: Band | None
    bounds: Mapping[str, float]

    def scaled(self, scale: float) -> "Slo":
        """Return the same objective for a band with its ends multiplied by ``scale``."""
        if self.band is None or scale == 1:
            return self
        band = self.band.scaled(scale)
        bounds = ",".join(f"{name}<{bound:g}" for name, bound in self.bounds.items())
        return Slo(f"band={band},{bounds}", band, self.bounds)

    @staticmethod
    def parse(text: str) -> "Slo":
        """Parse an objective such as ``band=0-8k,ttft<0.5,tpot<0.1``; raises UsageError for another figure."""
        where, rest = _band(text)
        bounds: dict[str, float] = {}
        for part in rest:
            found = re.fullmatch(r"(ttft|tpot|e2el)<([0-9.]+(?:e-?[0-9]+)?)", part, re.ASCII)
            if not found:
                raise UsageError(
                    f"objective {part!r} must be one of {', '.join(OBJECTIVES)}, <, and seconds, as in ttft<0.5"
                )
            bounds[found[1]] = _number(found[2], part)
        if not bounds:
            raise UsageError(f"objective {text!r} has no bound: add one, as in band=0-8k,ttft<0.5,tpot<0.1")
        return Slo(text, where, bounds)


def _band(text: str) -> tuple[Band | None, list[str]]:
    parts = [part.strip().replace(" ", "") for part in text.split(",")]
    if parts[0].startswith("band="):
        return band(parts[0].removeprefix("band=")), parts[1:]
    return None, parts


def _limit(text: str) -> Limit:
    found = re.fullmatch(r"([a-z0-9_]+?)(<=|>=|==|<|>)(-?[0-9.]+(?:e-?[0-9]+)?)", text, re.ASCII)
    if not found:
        raise UsageError(f"assertion {text!r} must be a figure, one of < <= > >= ==, and a number, as in ttft_p99<0.5")
    name, sign = found[1], found[2]
    ratio = name.startswith("ratio_")
    key, scale = _key(name.removeprefix("ratio_"), text)
    return Limit(text, key, 1.0 if ratio else scale, ratio, sign, _number(found[3], text))


def _key(name: str, text: str) -> tuple[str, float]:
    if name in NUMBERS:
        return NUMBERS[name], 1.0
    latency, _, statistic = name.rpartition("_")
    if latency in LATENCIES and (statistic in STATISTICS or statistic == "p50"):
        return f"{'median' if statistic == 'p50' else statistic}_{latency}_ms", 0.001
    raise UsageError(
        f"assertion {text!r}: unknown figure {name!r}; allowed: {', '.join(NUMBERS)}, and one of "
        f"{', '.join(LATENCIES)} with one of {', '.join((*STATISTICS, 'p50'))}, as in ttft_p99. The prefix ratio_ "
        "compares a figure with the baseline's"
    )


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{where!r}: {text!r} is not a number") from error


def _of_band(figures: Mapping[str, Any] | None, where: Band | None) -> Mapping[str, Any]:
    if figures is None:
        return {}
    if where is None:
        return figures
    found: Mapping[str, Any] = figures["bands"].get(str(where), {})
    return found


def _value(limit: Limit, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    value = ours.get(limit.key)
    if value is None:
        return None
    if not limit.ratio:
        return float(value) * limit.scale
    base = theirs.get(limit.key)
    return float(value) / float(base) if base else None
