"""Runs all checks of a factor file and formats the results as text and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ropeswitch.factors.check.base_bound import count_negative, first_negative, lower_bound
from ropeswitch.factors.check.precision import Precision, precision
from ropeswitch.factors.check.shape import Shape, shape, warnings
from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.rules.formulas import equivalent_base
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.rules.show import critical_note
from ropeswitch.factors.text_table import table
from ropeswitch.kernels.angles import inverse_frequencies


@dataclass(frozen=True)
class SetReport:
    """Results for one set.

    Attributes:
        name: Name of the set.
        length: Longest sequence checked, in tokens.
        shape: Shape of its factors.
        warnings: Unusual properties; none is an error.
        equivalent_base: Base that has the same effect without factors, or None.
        first_negative: First distance up to ``length`` with B(m) < 0, or None.
        negative: Number of distances up to ``length`` with B(m) < 0.
        precision: Errors of cos and sin at increasing lengths, the last being ``length``.
    """

    name: str
    length: int
    shape: Shape
    warnings: tuple[str, ...]
    equivalent_base: float | None
    first_negative: int | None
    negative: int
    precision: tuple[Precision, ...]


@dataclass(frozen=True)
class Report:
    """Results for all sets.

    Attributes:
        rope: Rotary embedding before any extension.
        sets: Results of each set.
        lower_bounds: Smallest two-digit base that satisfies the bound, or None, by length; see ``base_bound.lower_bound``.
    """

    rope: Rope
    sets: tuple[SetReport, ...]
    lower_bounds: dict[int, float | None]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        bounds = [{"length": length, "base": base} for length, base in self.lower_bounds.items()]
        critical = {"critical_dimension": self.rope.critical_dimension, "critical_pair": self.rope.critical_pair}
        return asdict(self) | {"rope": asdict(self.rope) | critical, "lower_bounds": bounds}


def check(rope: Rope, sets: Sequence[FactorSet], length: int | None = None) -> Report:
    """Check factor sets, each up to its ``max_length`` or up to ``length`` tokens."""
    found = tuple(_check_set(rope, each, length or each.max_length) for each in sets)
    lengths = sorted({each.length for each in found})
    return Report(rope, found, {each: lower_bound(rope.rotary_dim, each) for each in lengths})


def _check_set(rope: Rope, factor_set: FactorSet, length: int) -> SetReport:
    frequencies = inverse_frequencies(rope.theta, rope.rotary_dim, factor_set.factors)
    form = shape(rope, factor_set, length)
    lengths = [each for each in (4**power for power in range(5, 16)) if each < length]
    return SetReport(
        name=factor_set.name,
        length=length,
        shape=form,
        warnings=tuple(warnings(form, factor_set, length)),
        equivalent_base=equivalent_base(rope.theta, factor_set.factors),
        first_negative=first_negative(frequencies, length),
        negative=count_negative(frequencies, length),
        precision=tuple(precision(rope.theta, factor_set, each) for each in (*lengths, length)),
    )


def to_text(report: Report, by_pair: bool = False) -> str:
    """Format the report as text tables; ``by_pair`` adds one line per pair of each set."""
    rope = report.rope
    blocks = [
        f"rotary dimension {rope.rotary_dim}, base {rope.theta:g}, original window {rope.original_length} tokens\n"
        + critical_note(rope),
        _shapes(report),
        _base_bound(report),
        "largest error of cos and sin over the last positions\n" + _precision(report),
    ]
    if said := [f"warning: set {each.name}: {warning}" for each in report.sets for warning in each.warnings]:
        blocks.append("\n".join(said))
    if by_pair:
        blocks += [f"set {each.name}\n" + _pairs(each, rope) for each in report.sets]
    return "\n\n".join(blocks)


def _shapes(report: Report) -> str:
    rows: list[tuple[str, ...]] = [("set", "tokens", "lowest", "highest", "rising", "pairs with unseen angles")]
    for each in report.sets:
        form = each.shape
        ends = (f"{form.lowest:.6g}", f"{form.highest:.6g}", "no" if form.falls else "yes")
        rows.append((each.name, str(each.length), *ends, f"{len(form.unseen)} of {len(form.pairs)}"))
    return table(rows)


def _base_bound(report: Report) -> str:
    rows = [("set", "B(m) >= 0 up to m", "negative m", "equivalent base", "smallest valid base")]
    for each in report.sets:
        holds = f"{each.length}, all" if each.first_negative is None else str(each.first_negative - 1)
        own = "none" if each.equivalent_base is None else f"{each.equivalent_base:.6g}"
        found = report.lower_bounds[each.length]
        bound = "none" if found is None else f"{found:.1e}"
        rows.append((each.name, holds, str(each.negative), own, bound))
    return table(rows)


def _precision(report: Report) -> str:
    rows: list[tuple[str, ...]] = [
        ("set", "tokens", "float32 angles", "float32 angles in bfloat16", "exact angles in bfloat16", "ours")
    ]
    for each in report.sets:
        last = each.precision[-1]
        errors = (last.float32, last.bfloat16, last.bfloat16_exact, last.ours)
        rows.append((each.name, str(last.length), *(f"{error:.2g}" for error in errors)))
    return table(rows)


def _pairs(each: SetReport, rope: Rope) -> str:
    rows: list[tuple[str, ...]] = [
        ("pair", "factor", "wavelength", "wavelength / window", "rotations in training", "unseen")
    ]
    for pair in each.shape.pairs:
        numbers = (pair.factor, pair.wavelength, pair.wavelength / rope.original_length, pair.turns)
        unseen = f"{pair.unseen:.1%} of a rotation" if pair.unseen else ""
        rows.append((str(pair.pair), *(f"{number:.6g}" for number in numbers), unseen))
    return table(rows)
