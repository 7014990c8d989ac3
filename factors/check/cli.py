"""The ``ropeswitch factors check`` command: reports what a factor file does to a model's angles."""

import argparse
import json
from pathlib import Path
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import check_target, save_text
from ropeswitch.factors.import_factors import ladder_file_from_config
from ropeswitch.factors.numbers import positive
from ropeswitch.factors.rules.lengths import parse_length
from ropeswitch.factors.rules.rope import Rope, rope_from_model

EXAMPLE = """examples:
  ropeswitch factors check llama2.json --original-length 4k
  ropeswitch factors check models/longrope-mini --json findings.json
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add ``check`` to the commands of ``factors``."""
    about, raw = "report a factor file's shape and the angles unseen in training", argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("check", help=about, epilog=EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    path = "factor file, config.json with longrope factors, or model folder with such a config.json"
    add("file", metavar="FILE", help=path)
    model = "config.json or model folder to read the rotary base and original window from"
    add("--model", metavar="FOLDER", help=model)
    add("--rope-theta", metavar="BASE", help="rotary base (default: from the model's config or the factor file)")
    add("--original-length", metavar="TOKENS", help="original window of the model (default: from the model's config)")
    add("--set", dest="only", metavar="NAME", help="check only this set (default: all)")
    add("--length", metavar="TOKENS", help="check every set up to this length (default: its max_length)")
    add("--json", metavar="FILE", help="also write the findings, with those of each rotary pair, as JSON")
    add("--force", action="store_true", help="overwrite the file of --json if it exists")
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    content, model = _open(args.file, args.model)
    rope = _rope(args, content, model)
    sets = content.ladder.sets if args.only is None else (content.ladder.named("--set", args.only),)
    length = None if args.length is None else parse_length("--length", args.length)
    if args.json is not None:
        check_target("--json", args.json, overwrite=args.force)

    from ropeswitch.factors.check.sets import check, to_json, to_text

    found = [check(rope, each, length) for each in sets]
    if args.json is not None:
        save_text(args.json, json.dumps(to_json(rope, found), indent=1) + "\n", overwrite=args.force)
    print(to_text(rope, found))
    return 0


def _open(path: str, model: str | None) -> tuple[file.LadderFile, str | None]:
    """Return the ladder, and the model that supplies what the factor file leaves out."""
    if Path(path).is_dir() or Path(path).name == "config.json":
        return ladder_file_from_config(path), model or path
    return file.load(path), model


def _rope(args: argparse.Namespace, content: file.LadderFile, model: str | None) -> Rope:
    known: dict[str, Any] = {}
    if args.rope_theta is not None:
        known["theta"] = positive("--rope-theta", args.rope_theta)
    if args.original_length is not None:
        known["original_length"] = parse_length("--original-length", args.original_length)
    if model is not None:
        rope = rope_from_model(model, **known)
        if rope.rotary_dim != content.ladder.rotary_dim:
            raise FactorError(
                f"{args.file!r}: rotary dimension {content.ladder.rotary_dim}, but {model!r} has {rope.rotary_dim}"
            )
    elif "original_length" not in known:
        raise FactorError("--original-length: missing; give it, or the model's config with --model")
    elif "theta" not in known and content.theta is None:
        raise FactorError(
            f"--rope-theta: missing; {args.file!r} does not contain it. Give it, or the model's config with --model"
        )
    else:
        rope = Rope(content.ladder.rotary_dim, **({"theta": content.theta} | known))
    if content.theta is not None and rope.theta != content.theta:
        raise FactorError(f"rope_theta: {args.file!r} was made for {content.theta:g}, not {rope.theta:g}")
    return rope
