"""The ``ropeswitch factors`` command: imports, makes, shows, checks, evaluates and searches factor files."""

import argparse
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.check import cli as check_cli
from ropeswitch.factors.evaluate import cli as evaluate_cli
from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.import_factors import SCALE_CHOICES, CsvSet, ladder_file_from_config, ladder_from_csv
from ropeswitch.factors.numbers import positive, whole
from ropeswitch.factors.rules import cli as rules_cli
from ropeswitch.factors.search import cli as search_cli
from ropeswitch.factors.text_table import table

EXAMPLE = """examples:
  ropeswitch factors import --set 8k=8192:8k_la2_128k.csv --set 2048k=2097152:2048k_la2_128k.csv \\
      --scale longrope --original-length 4096 --rope-theta 10000 -o llama2.json
  ropeswitch factors import Phi-3-mini-128k-instruct/config.json -o phi3.json
"""
# Range of token counts on the command line; FactorLadder.checked decides which are valid lengths.
TOKENS = (0, 10**10 - 1, "a whole number of tokens")
# [NAME=]VALUE: for all sets, or for one.
PER_SET = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<value>[^=]+)")
SET = re.compile(r"(?P<name>[^=]+)=(?P<length>[^:=]+):(?P<path>.+)", re.DOTALL)


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the ``factors`` command and its subcommands; each sets ``func``, which maps the namespace to an exit code.

    ``func`` raises FactorError for everything a user can get wrong.
    """
    factors = subparsers.add_parser("factors", help="import, make, check, evaluate and search factor files")
    commands = factors.add_subparsers(metavar="COMMAND", required=True)
    _add_import(commands)
    rules_cli.add_parser(commands)
    check_cli.add_parser(commands)

    show = commands.add_parser("show", help="print a factor file as a table")
    show.add_argument("file", metavar="FILE")
    show.set_defaults(func=_show)

    validate = commands.add_parser("validate", help="check that a factor file is valid")
    validate.add_argument("file", metavar="FILE")
    validate.set_defaults(func=_validate)

    evaluate_cli.add_parser(commands)
    search_cli.add_parser(commands)


def _add_import(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser(
        "import",
        help="convert LongRoPE CSV files or a Hugging Face config.json to a factor file",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="config.json with longrope factors, or the folder that contains it")
    add(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="NAME=LENGTH:CSV",
        help="add a factor set for sequences of up to LENGTH tokens; repeatable, by increasing length",
    )
    add(
        "--scale",
        action="append",
        default=[],
        metavar="[NAME=]SCALE",
        help=f"multiplier of cos and sin: {SCALE_CHOICES}",
    )
    add("--original-length", metavar="TOKENS", help="original window of the model, for --scale longrope")
    add(
        "--start-tokens",
        action="append",
        default=[],
        metavar="[NAME=]TOKENS",
        help="positions below this keep the unscaled angles (default: 0)",
    )
    add("--rope-theta", metavar="BASE", help="rotary base that the factors were made for (default: the model's)")
    add("--description", metavar="TEXT", help="free text to store in the file")
    add("-o", "--output", required=True, metavar="FILE", help="factor file to write")
    add("--force", action="store_true", help="overwrite FILE if it exists")
    parser.set_defaults(func=_import)


def _import(args: argparse.Namespace) -> int:
    made = _from_config(args) if args.config is not None else _from_csv(args)
    content = file.LadderFile(made.ladder, made.theta, args.description)
    file.save(args.output, content, overwrite=args.force)
    print(f"wrote {args.output}: {_summary(content)}")
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
    start_tokens = {
        name: whole("--start-tokens", value, *TOKENS) for name, value in _by_set("--start-tokens", args.start_tokens)
    }
    ladder = ladder_from_csv(
        [_csv_set(text) for text in args.sets],
        scales=dict(_by_set("--scale", args.scale)),
        start_tokens=start_tokens,
        original_length=None
        if args.original_length is None
        else whole("--original-length", args.original_length, *TOKENS),
    )
    return file.LadderFile(ladder, None if args.rope_theta is None else positive("--rope-theta", args.rope_theta))


def _csv_set(text: str) -> CsvSet:
    match = SET.fullmatch(text)
    if not match:
        raise FactorError(f"--set: {text!r} must be NAME=LENGTH:CSV, such as 8k=8192:8k.csv")
    return CsvSet(match["name"], whole("--set", match["length"], *TOKENS), match["path"])


def _by_set(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in texts:
        match = PER_SET.fullmatch(text)
        if not match:
            raise FactorError(f"{flag}: {text!r} must be a value, or NAME=VALUE for one set")
        pairs.append((match["name"] or "", match["value"]))
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FactorError(f"{flag}: given twice for {twice!r}")
    if names.count("") > 1:
        raise FactorError(f"{flag}: given twice for all sets")
    return pairs


def _show(args: argparse.Namespace) -> int:
    content = file.load(args.file)
    if content.description is not None:
        print(content.description)
    print(f"rotary dimension {content.ladder.rotary_dim}, rope_theta {content.theta or 'from the model'}")
    rows: list[tuple[str, ...]] = [("set", "tokens", "factors", "lowest", "highest", "rising", "scale", "start tokens")]
    first = 1
    for factor_set in content.ladder.sets:
        rows.append(_row(factor_set, first))
        first = factor_set.max_length + 1
    print(table(rows))
    return 0


def _row(factor_set: FactorSet, first: int) -> tuple[str, ...]:
    factors = factor_set.factors
    rising = all(before <= after for before, after in pairwise(factors))
    return (
        factor_set.name,
        f"{first} to {factor_set.max_length}",
        str(len(factors)),
        f"{min(factors):.6g}",
        f"{max(factors):.6g}",
        "yes" if rising else "no",
        f"{factor_set.scale:.6g}",
        str(factor_set.start_tokens),
    )


def _validate(args: argparse.Namespace) -> int:
    print(f"{args.file}: valid, {_summary(file.load(args.file))}")
    return 0


def _summary(content: file.LadderFile) -> str:
    sets = ", ".join(f"{each.name} up to {each.max_length} tokens" for each in content.ladder.sets)
    return f"{len(content.ladder.sets)} {'set' if len(content.ladder.sets) == 1 else 'sets'}: {sets}"
