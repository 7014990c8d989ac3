"""Formats the output of ``factors rule``."""

from collections.abc import Sequence

from ropeswitch.factors.file import LadderFile
from ropeswitch.factors.rules.catalogue import RULES, Rule
from ropeswitch.factors.rules.formulas import Target, equivalent_base
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.text_table import table

# (d, base, window); some published numbers for it disagree with the formulas.
LLAMA_3_8B = (128, 500000.0, 8192)
GRADIENT = (
    "published by Gradient AI: theta 283461213 in the config for 262144 tokens, 3580165449 for 1048576, 45218125210 for "
    "4194304, which are 'theta'; on the model cards 15.3M for 65536, 207.1M for 262144, 1.06B for 524288 and 2.80B for "
    "1048576, which are 'ntk-staged' with --dynamic-factor 4 (the last from 262144 tokens)"
)


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
    """Explain the critical dimension, and where a published text differs."""
    note = (
        f"critical dimension {rope.critical_dimension} of {rope.rotary_dim}: "
        f"2 ceil({rope.rotary_dim // 2} log_{rope.theta:g}({rope.original_length}/2pi)) = 2 ceil({rope.critical_pair:.3f})"
    )
    if _shape(rope) == LLAMA_3_8B:
        note += (
            "\na published text says 72 for this model, which also counts pair 35, whose rotation takes "
            f"{rope.wavelength(35):.0f} tokens, {rope.wavelength(35) - rope.original_length:.0f} more than the window; "
            "LongRoPE2 (arXiv:2502.20082) prints 35 pairs, which is 70"
        )
    return note


def notes(rule: Rule, rope: Rope) -> str:
    """Return notes on the model that matter for the rule, or an empty string."""
    staged = rule.name in ("theta-staged", "ntk-staged") and _shape(rope) == LLAMA_3_8B
    critical = rule.name in ("theta", "theta-staged", "longrope2")
    return "\n".join([critical_note(rope)] * critical + [GRADIENT] * staged)


def _shape(rope: Rope) -> tuple[int, float, int]:
    return rope.rotary_dim, rope.theta, rope.original_length
