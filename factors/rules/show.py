"""Formats the output of ``factors rule``."""

from collections.abc import Sequence

from ropeswitch.factors.file import LadderFile
from ropeswitch.factors.rules.catalogue import RULES, Rule
from ropeswitch.factors.rules.formulas import Target, equivalent_base
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.text_table import table


def rule_list() -> str:
    """List all rules with formula, options and source."""
    blocks = []
    for rule in RULES:
        takes = ", ".join(flag(option) for option in rule.options) or "no options of its own"
        blocks.append(
            f"{rule.name}\n  formula: {rule.formula}\n  attention scale: {rule.attention}\n  takes: {takes}\n"
            f"  source: {rule.source}"
        )
    return "\n".join(blocks)


def flag(option: str) -> str:
    """Return the flag of a field of Options."""
    return "--no-truncate" if option == "truncate" else "--" + option.replace("_", "-")


def summary(content: LadderFile, rope: Rope, targets: Sequence[Target]) -> str:
    """Format the sets, one line each, with the extension ratio of their target (1 without a target)."""
    ratios = {target.length: target.scale for target in targets}
    rows = [("set", "tokens", "s", "lowest", "highest", "scale", "equivalent base")]
    for each in content.ladder.sets:
        base = equivalent_base(rope.theta, each.factors)
        rows.append(
            (
                each.name,
                str(each.max_length),
                f"{ratios.get(each.max_length, 1.0):g}",
                f"{min(each.factors):.9g}",
                f"{max(each.factors):.9g}",
                f"{each.scale:.9g}",
                "none" if base is None else f"{base:.10g}",
            )
        )
    return table(rows)


def by_pair(content: LadderFile, rope: Rope) -> str:
    """Format the factors, one line per pair."""
    rows: list[tuple[str, ...]] = [("pair", "wavelength", "rotations in window", *content.ladder.names)]
    for pair in range(rope.pairs):
        factors = (f"{each.factors[pair]:.9g}" for each in content.ladder.sets)
        rows.append((str(pair), f"{rope.wavelength(pair):.6g}", f"{rope.turns(pair):.4g}", *factors))
    return table(rows)


def critical_note(rope: Rope) -> str:
    """Explain the critical dimension."""
    return (
        f"critical dimension {rope.critical_dimension} of {rope.rotary_dim}: "
        f"2 ceil({rope.rotary_dim // 2} log_{rope.theta:g}({rope.original_length}/2pi)) = 2 ceil({rope.critical_pair:.3f})"
    )


def notes(rule: Rule, rope: Rope) -> str:
    """Return notes on the model that matter for the rule, or an empty string."""
    return critical_note(rope) if rule.name in ("theta", "theta-staged", "longrope2") else ""
