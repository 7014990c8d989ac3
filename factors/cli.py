"""The ``ropeswitch factors`` command: imports, makes, shows, checks, evaluates and searches factor files."""

import argparse
import re
from itertools import pairwise
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.check import cli as check_cli
from ropeswitch.factors.evaluate import cli as evaluate_cli
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.import_factors import SCALE_CHOICES, CsvSet, ladder_file_from_config, ladder_from_csv
from ropeswitch.factors.numbers import positive, whole
from ropeswitch.factors.rules import cli as rules_cli
from ropeswitch.factors.search import cli as search_cli
from ropeswitch.factors.text_table import table
from ropeswitch.factors.tune import cli as tune_cli

EXAMPLE = """examples:
  ropeswitch factors import --set 8k=8192:8k_la2_128k.csv --set 2048k=2097152:2048k_la2_128k.csv \\
      --scale longrope --original-length 4096 --rope-theta 10000 -o llama2.json
  ropeswitch factors import Phi-3-mini-128k-instruct/config.json -o phi3.json
"""
# Range of token counts on the command line; FactorLadder.checked decides which are valid lengths.
TOKENS = (0, 10**10 - 1, "a whole number of tokens")
SET = re.compile(r"(?P<name>[^=]+)=(?P<length>[^:=]+):(?P<path>.+)", re.DOTALL)


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the ``factors`` command and its subcommands; each sets ``func``, which maps the namespace to an exit code.

    ``func`` raises FactorError for everything a user can get wrong.
    """
    factors = subparsers.add_parser("factors", help="import, make, check, evaluate and search factor files")
    commands = factors.add_subparsers(metavar="COMMAND", required=True)
    about = "convert LongRoPE CSV files or a Hugging Face config.json to a factor file"
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("import", help=about, epilog=EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="config.json with longrope factors, or the folder that contains it")
    sets = "add a factor set for sequences of up to LENGTH tokens; repeatable, by increasing length"
    add("--set", dest="sets", action="append", default=[], metavar="NAME=LENGTH:CSV", help=sets)
    add("--scale", action="append", default=[], metavar="SCALE", help=f"multiplier of cos and sin: {SCALE_CHOICES}")
    add("--original-length", metavar="TOKENS", help="original window of the model, for --scale longrope")
    add(
        "--start-tokens",
        action="append",
        default=[],
        metavar="TOKENS",
        help="positions below this keep the unscaled angles (default: 0)",
    )
    add("--rope-theta", metavar="BASE", help="rotary base that the factors were made for (default: the model's)")
    add("--description", metavar="TEXT", help="free text to store in the file")
    add("-o", "--output", required=True, metavar="FILE", help="factor file to write")
    add("--force", action="store_true", help="overwrite FILE if it exists")
    parser.set_defaults(func=_import)

    rules_cli.add_parser(commands)
    check_cli.add_parser(commands)
    show = commands.add_parser(
        "show", aliases=["validate"], help="check that a factor file is valid, and print it as a table"
    )
    show.add_argument("file", metavar="FILE")
    show.set_defaults(func=_show)
    evaluate_cli.add_parser(commands)
    search_cli.add_parser(commands)
    tune_cli.add_parser(commands)


def _import(args: argparse.Namespace) -> int:
    made = _from_csv(args) if args.config is None else _from_config(args)
    file.save(args.output, file.LadderFile(made.ladder, made.theta, args.description), overwrite=args.force)
    sets = ", ".join(f"{each.name} up to {each.max_length} tokens" for each in made.ladder.sets)
    print(f"wrote {args.output}: {len(made.ladder.sets)} {'set' if len(made.ladder.sets) == 1 else 'sets'}: {sets}")
    return 0


def _from_config(args: argparse.Namespace) -> file.LadderFile:
    for flag in ("sets", "scale", "original_length", "start_tokens", "rope_theta"):
        if getattr(args, flag):
            name = "--set" if flag == "sets" else "--" + flag.replace("_", "-")
            raise FactorError(f"{name}: applies to CSV files only; {args.config!r} already contains it")
    return ladder_file_from_config(args.config)


def _from_csv(args: argparse.Namespace) -> file.LadderFile:
    if not args.sets:
        raise FactorError("factors import: give a config.json, or CSV files with --set NAME=LENGTH:CSV")
    for flag, values in (("--scale", args.scale), ("--start-tokens", args.start_tokens)):
        if len(values) > 1:
            raise FactorError(f"{flag}: {values[1]!r}: given twice; one value holds for all sets")
    original, start = args.original_length, args.start_tokens
    ladder = ladder_from_csv(
        [_csv_set(text) for text in args.sets],
        scale=args.scale[0] if args.scale else None,
        start_tokens=whole("--start-tokens", start[0], *TOKENS) if start else 0,
        original_length=None if original is None else whole("--original-length", original, *TOKENS),
    )
    return file.LadderFile(ladder, None if args.rope_theta is None else positive("--rope-theta", args.rope_theta))


def _csv_set(text: str) -> CsvSet:
    match = SET.fullmatch(text)
    if not match:
        raise FactorError(f"--set: {text!r} must be NAME=LENGTH:CSV, such as 8k=8192:8k.csv")
    return CsvSet(match["name"], whole("--set", match["length"], *TOKENS), match["path"])


def _show(args: argparse.Namespace) -> int:
    content = file.load(args.file)
    if content.description is not None:
        print(content.description)
    print(f"rotary dimension {content.ladder.rotary_dim}, rope_theta {content.theta or 'from the model'}")
    rows: list[tuple[str, ...]] = [("set", "tokens", "factors", "lowest", "highest", "rising", "scale", "start tokens")]
    first = 1
    for each in content.ladder.sets:
        rising = "yes" if all(before <= after for before, after in pairwise(each.factors)) else "no"
        ends = (f"{min(each.factors):.6g}", f"{max(each.factors):.6g}", rising, f"{each.scale:.6g}")
        name = f"{each.name}, by layer" if each.layers else each.name
        rows.append((name, f"{first} to {each.max_length}", str(len(each.factors)), *ends, str(each.start_tokens)))
        first = each.max_length + 1
    print(table(rows))
    return 0
