"""``--assert`` and service level objectives: ``band=0-8k,ttft_p99<0.5``. Times are in seconds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.bands import Band, band

LATENCIES = ("ttft", "tpot", "itl", "e2el", "lateness", "ttft_due")
STATISTICS = ("mean", "median", "std", "p90", "p95", "p99", "max")
# Figures that are no latencies, as written here and as results.json has them. Shares are of the requests they are about.
NUMBERS = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "correct": "correct_share",
    "wrong": "wrong",
    "miscounted": "miscounted",
    "good": "good_share",
    "crossings": "crossings",
    "request_throughput": "request_throughput",
    "output_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
}
OBJECTIVES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Limit:
    """``key < bound`` or another comparison.

    Attributes:
        text: As it was written.
        key: Of the figures in ``results.json``.
        scale: What the figure is multiplied by first: results.json has milliseconds.
        ratio: Whether the figure's ratio to the baseline's is meant.
        sign: One of ``< <= > >= ==``.
        bound: The number.
    """

    text: str
    key: str
    scale: float
    ratio: bool
    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        match self.sign:
            case "<":
                return value < self.bound
            case "<=":
                return value <= self.bound
            case ">":
                return value > self.bound
            case ">=":
                return value >= self.bound
            case _:
                return value == self.bound


@dataclass(frozen=True)
class Assertion:
    """Limits that a run must keep, of one band or of all requests together.

    Attributes:
        text: As it was written.
        band: None for all requests.
        limits: All must hold.
    """

    text: str
    band: Band | None
    limits: tuple[Limit, ...]

    @staticmethod
    def parse(text: str) -> "Assertion":
        """An assertion as ``--assert`` takes it.

        Raises:
            UsageError: where it cannot be read, or names a figure that there is none of.
        """
        where, rest = _band(text)
        if not rest:
            raise UsageError(f"assertion {text!r} has no limit: write band=0-8k,ttft_p99<0.5")
        return Assertion(text, where, tuple(_limit(part) for part in rest))

    def check(self, figures: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """The outcome of each limit: ``text``, ``value`` (None where there is no such figure) and ``ok``."""
        ours, theirs = _of_band(figures, self.band), _of_band(baseline, self.band)
        checked = []
        for limit in self.limits:
            value = _value(limit, ours, theirs)
            text = f"band={self.band},{limit.text}" if self.band else limit.text
            checked.append({"text": text, "value": value, "ok": value is not None and limit.holds(value)})
        return checked


@dataclass(frozen=True)
class Slo:
    """What a good answer is: upper bounds of its times, in seconds, for prompts of one band or for all.

    Attributes:
        text: As it was written.
        band: None for all requests.
        bounds: By ``ttft``, ``tpot`` and ``e2el``.
    """

    text: str
    band: Band | None
    bounds: Mapping[str, float]

    def scaled(self, scale: float) -> "Slo":
        """The same of the band whose ends are multiplied by ``scale``."""
        if self.band is None or scale == 1:
            return self
        band = self.band.scaled(scale)
        bounds = ",".join(f"{name}<{bound:g}" for name, bound in self.bounds.items())
        return Slo(f"band={band},{bounds}", band, self.bounds)

    @staticmethod
    def parse(text: str) -> "Slo":
        """An objective such as ``band=0-8k,ttft<0.5,tpot<0.1``.

        Raises:
            UsageError: where it cannot be read, or bounds anything else.
        """
        where, rest = _band(text)
        bounds: dict[str, float] = {}
        for part in rest:
            found = re.fullmatch(r"(ttft|tpot|e2el)<([0-9.]+(?:e-?[0-9]+)?)", part, re.ASCII)
            if not found:
                raise UsageError(f"objective {part!r} must be one of {', '.join(OBJECTIVES)}, < and seconds: ttft<0.5")
            bounds[found[1]] = _number(found[2], part)
        if not bounds:
            raise UsageError(f"objective {text!r} has no bound: write band=0-8k,ttft<0.5,tpot<0.1")
        return Slo(text, where, bounds)


def _band(text: str) -> tuple[Band | None, list[str]]:
    parts = [part.strip().replace(" ", "") for part in text.split(",")]
    if parts[0].startswith("band="):
        return band(parts[0].removeprefix("band=")), parts[1:]
    return None, parts


def _limit(text: str) -> Limit:
    found = re.fullmatch(r"([a-z0-9_]+?)(<=|>=|==|<|>)(-?[0-9.]+(?:e-?[0-9]+)?)", text, re.ASCII)
    if not found:
        raise UsageError(f"assertion {text!r} must be a figure, one of < <= > >= ==, and a number: ttft_p99<0.5")
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
        f"assertion {text!r}: there is no figure {name!r}: allowed are {', '.join(NUMBERS)}, and one of "
        f"{', '.join(LATENCIES)} with one of {', '.join((*STATISTICS, 'p50'))}, as in ttft_p99; with ratio_ before "
        "it, against the baseline"
    )


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{where!r}: {text!r} is no number") from error


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
