"""The ``ropeswitch factors rule`` command: makes a factor file from a closed-form rule."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import positive, whole
from ropeswitch.factors.rules.catalogue import RULES, Rule, rule
from ropeswitch.factors.rules.formulas import Options, Target, equivalent_base
from ropeswitch.factors.rules.lengths import parse_length, parse_lengths
from ropeswitch.factors.rules.make import ATTENTION_CHOICES, make, targets_for
from ropeswitch.factors.rules.rope import Rope, rope_from_model
from ropeswitch.factors.text_table import table

EXAMPLE = """examples:
  ropeswitch factors rule --list
  ropeswitch factors rule yarn --model Llama-2-7b --length 64k -o yarn.json
  ropeswitch factors rule dynamic-ntk --rotary-dim 128 --rope-theta 10000 --original-length 4k --lengths 8k,16k,32k
"""
MOST_PAIRS = 999_999


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add ``rule`` to the commands of ``factors``."""
    raw = argparse.RawDescriptionHelpFormatter
    about = "make a factor file from a rule: pi, ntk, yarn, theta, longrope2 and others"
    parser = commands.add_parser("rule", help=about, epilog=EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="name of the rule; --list prints all of them")
    add("--list", action="store_true", help="print every rule with its formula, options and source")
    add("--model", metavar="FOLDER", help="config.json or model folder to read the next three from")
    add("--rotary-dim", metavar="D", help="rotated values per head")
    add("--rope-theta", metavar="BASE", help="rotary base")
    add("--original-length", metavar="TOKENS", help="window of the model before any extension")
    add("--length", metavar="TOKENS", help="longest sequence to extend to, such as 131072 or 128k")
    add("--lengths", metavar="TOKENS,...", help="lengths for a ladder with one set each, such as 8k,16k,32k")
    add("--scale", metavar="S", help="extension ratio s (default: length / original length)")
    add("--attention-scale", default="published", metavar="NAME", help=ATTENTION_CHOICES)
    original = "start the ladder with a set that leaves the original window unscaled"
    add("--keep-original", action="store_true", help=original)
    add("--alpha", metavar="ROTATIONS", help="interpolate pairs by s up to this many rotations per window (default: 1)")
    add("--beta", metavar="ROTATIONS", help="leave pairs unscaled from this many rotations per window on (default: 32)")
    rounding = "do not round the ends of YaRN's ramp to whole pairs"
    add("--no-truncate", dest="truncate", action="store_false", default=None, help=rounding)
    add("--dynamic-factor", metavar="F", help="factor f of dynamic NTK (default: 1)")
    add("--low-freq-factor", metavar="ROTATIONS", help="alpha of llama3 (default: 1)")
    add("--high-freq-factor", metavar="ROTATIONS", help="beta of llama3 (default: 4)")
    add("--critical-index", metavar="PAIR", help="critical pair of longrope2 (default: the theoretical one)")
    above = "factors of longrope2 from the critical pair on: one for all pairs, or one per pair (default: s)"
    add("--above", metavar="FACTOR,...", help=above)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("-o", "--output", metavar="FILE", help="factor file to write (default: print the sets)")
    output.add_argument("--json", action="store_true", help="print the factor file instead of a table")
    add("--force", action="store_true", help="overwrite FILE if it exists")
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    if args.list:
        print("\n".join(map(_about, RULES)))
        return 0
    if args.name is None:
        raise FactorError("factors rule: give the NAME of a rule; --list prints all of them")
    chosen = rule(args.name)
    options = _options(args, chosen)
    rope = _rope(args)
    targets = _targets(args, chosen, rope)
    content = make(chosen, rope, targets, options, attention=args.attention_scale, keep_original=args.keep_original)
    if args.json:
        print(file.to_text(content), end="")
        return 0
    if args.output is not None:
        file.save(args.output, content, overwrite=args.force)
        print(f"wrote {args.output}")
    print(content.description)
    if chosen.name in ("theta", "longrope2"):
        print(rope.critical_note)
    print("\n" + _summary(content, rope, targets))
    return 0


def _rope(args: argparse.Namespace) -> Rope:
    """Build the rotary embedding from the flags; a flag overrides the model's config."""
    values: dict[str, Any] = {}
    if args.rotary_dim is not None:
        values["rotary_dim"] = whole("--rotary-dim", args.rotary_dim)
    if args.rope_theta is not None:
        values["theta"] = positive("--rope-theta", args.rope_theta)
    if args.original_length is not None:
        values["original_length"] = parse_length("--original-length", args.original_length)
    if args.model is not None:
        return rope_from_model(args.model, **values)
    names = {"rotary_dim": "--rotary-dim", "theta": "--rope-theta", "original_length": "--original-length"}
    for field, name in names.items():
        if field not in values:
            raise FactorError(f"{name}: missing; give it, or the model's config with --model")
    return Rope(**values)


def _targets(args: argparse.Namespace, chosen: Rule, rope: Rope) -> list[Target]:
    scale = None if args.scale is None else positive("--scale", args.scale)
    if scale is not None and not chosen.takes_scale:
        raise FactorError(f"--scale: rule {chosen.name!r} does not take it; use --length or --lengths")
    if args.lengths is not None:
        for name in ("length", "scale"):
            if getattr(args, name) is not None:
                raise FactorError(
                    f"--{name}: cannot be combined with --lengths, which gives each set its own length and scale"
                )
        return targets_for(rope, parse_lengths("--lengths", args.lengths))
    if args.length is not None:
        return targets_for(rope, [parse_length("--length", args.length)], scale)
    if scale is not None:
        # round() rejects infinity.
        length = round(min(scale * rope.original_length, 2.0**31))
        return targets_for(rope, [parse_length("--scale", str(length))], scale)
    raise FactorError(f"--length: missing; give it, or --lengths{' or --scale' if chosen.takes_scale else ''}")


def _options(args: argparse.Namespace, chosen: Rule) -> Options:
    values: dict[str, Any] = {}
    for each in fields(Options):
        value = getattr(args, each.name)
        if value is None:
            continue
        if each.name not in chosen.options:
            raise FactorError(f"{_flag(each.name)}: rule {chosen.name!r} does not take it; it takes {_takes(chosen)}")
        values[each.name] = _option(each.name, value)
    options = Options(**values)
    for low, high in (("alpha", "beta"), ("low_freq_factor", "high_freq_factor")):
        if not getattr(options, low) < getattr(options, high):
            raise FactorError(f"{_flag(low)}: {getattr(options, low):g} must be below {_flag(high)}")
    return options


def _option(name: str, value: Any) -> Any:
    if name == "truncate":
        return value
    if name == "critical_index":
        return whole(_flag(name), value, 1, MOST_PAIRS, "a whole number of at least 1")
    if name == "above":
        return tuple(positive(_flag(name), part) for part in value.split(","))
    return positive(_flag(name), value)


def _flag(option: str) -> str:
    return "--no-truncate" if option == "truncate" else "--" + option.replace("_", "-")


def _takes(chosen: Rule) -> str:
    return ", ".join(map(_flag, chosen.options)) or "no options of its own"


def _about(each: Rule) -> str:
    return (
        f"{each.name}\n  formula: {each.formula}\n  attention scale: {each.attention}\n  takes: {_takes(each)}\n"
        f"  source: {each.source}"
    )


def _summary(content: file.LadderFile, rope: Rope, targets: Sequence[Target]) -> str:
    """Format the sets, one line each, with the extension ratio of their target (1 without a target)."""
    ratios = {target.length: target.scale for target in targets}
    rows: list[tuple[str, ...]] = [("set", "tokens", "s", "lowest", "highest", "scale", "equivalent base")]
    for each in content.ladder.sets:
        base = equivalent_base(rope.theta, each.factors)
        ends = (f"{number:.9g}" for number in (min(each.factors), max(each.factors), each.scale))
        ratio = f"{ratios.get(each.max_length, 1.0):g}"
        rows.append((each.name, str(each.max_length), ratio, *ends, "none" if base is None else f"{base:.10g}"))
    return table(rows)
