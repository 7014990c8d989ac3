"""The ``ropeswitch factors search`` command."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.rules.lengths import length_name, parse_length, parse_lengths
from ropeswitch.factors.search import extend_cli
from ropeswitch.factors.search.flags import add_search_flags, check_output, job_of, resumable

EXAMPLE = """examples:
  ropeswitch factors search Llama-2-7b-hf --length 32k --text books/ -o 32k.json
  ropeswitch factors search Llama-2-7b-32k --length 256k --text books/ --from 32k.json -o 256k.json
  ropeswitch factors search Llama-2-7b-32k --recover 4k,8k --text books/ --from 256k.json --set 256k -o llama2.json
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add ``search`` and ``extend`` to the commands of ``ropeswitch factors``."""
    parser = commands.add_parser(
        "search",
        help="search for factors at a longer length, or at a shorter one on an extended model",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="model folder or Hugging Face name")
    add("--length", metavar="N", help="length to extend to, such as 32768 or 32k")
    add("--recover", metavar="N,N", help="shorter lengths to search on an extended model")
    add("--from", dest="base", metavar="FILE", help="factor file that the model was fine-tuned with")
    add("--set", dest="base_set", metavar="NAME", help="set in --from to use (default: the last)")
    add(
        "--upper",
        type=float,
        metavar="X",
        help="largest factor (default: 1.25 x new length / current length; for --recover that of the set)",
    )
    add("-o", "--output", required=True, metavar="FILE", help="factor file to write")
    add("--name", metavar="NAME", help="name of the new set (default: its length)")
    add_search_flags(parser)
    parser.set_defaults(func=resumable(_search))
    extend_cli.add_parser(commands)


def _search(args: argparse.Namespace) -> int:
    if (args.length is None) == (args.recover is None):
        raise FactorError("factors search: give either --length, or --recover for shorter lengths of an extended model")
    return _longer(args) if args.recover is None else _recover(args)


def _longer(args: argparse.Namespace) -> int:
    from ropeswitch.factors.search.job import files_beside, run_job

    length = parse_length("--length", args.length)
    files = files_beside(args.output)
    check_output(args, [files])
    job = replace(job_of(args, length, args.name or length_name(length), _base(args)), upper=args.upper)
    job = replace(job, theta=None if args.base is None else file.load(args.base).theta)
    result = run_job(job, files)
    about = f"{job.name}: perplexity {result.perplexity:.4f} on {job.settings.documents} texts of {length} tokens"
    return _write(args, [result.factor_set], result.theta, about)


def _recover(args: argparse.Namespace) -> int:
    from ropeswitch.factors.search.job import files_beside, own_ladder, run_job
    from ropeswitch.factors.search.plan import check_recovered

    lengths = parse_lengths("--recover", args.recover)
    if len(lengths) > 1 and args.name is not None:
        raise FactorError(f"--name: applies to one length, but --recover lists {len(lengths)}")
    if args.scale is not None:
        raise FactorError(f"--scale: {args.scale!r} applies to --length only; a recovered set keeps its scale")
    names = [args.name or length_name(length) for length in lengths]
    beside = [Path(args.output).with_suffix(f".{name}.json") for name in names]
    searches = [files_beside(path) for path in beside]
    check_output(args, searches)
    ladder = own_ladder(args.model) if args.base is None else file.load(args.base).ladder
    base = _base(args) or ladder.sets[-1]
    theta = None if args.base is None else file.load(args.base).theta
    kept = [each for each in ladder.sets if each.max_length > lengths[-1]]
    # Before the first search, which may take hours.
    check_recovered(lengths[-1], base)
    if taken := {each.name for each in kept}.intersection(names):
        raise FactorError(f"--name: {min(taken)!r} is the name of a longer set, which is kept; use another name")
    found, about = [], []
    for length, name, files in zip(lengths, names, searches, strict=True):
        job = replace(job_of(args, length, name, base, recover=True), upper=args.upper, theta=theta)
        result = run_job(job, files)
        found.append(result.factor_set)
        about.append(f"{job.name}: perplexity {result.perplexity:.4f}")
    return _write(args, found + kept, result.theta, f"recovered {', '.join(about)} on texts of that length")


def _write(args: argparse.Namespace, sets: list[FactorSet], theta: float, about: str) -> int:
    description = f"{Path(args.model).name or args.model}, {args.method} search; {about}"
    content = file.LadderFile(FactorLadder.checked(FactorLadder(tuple(sets)).to_json()), theta, description)
    file.save(args.output, content, overwrite=args.force)
    print(f"wrote {args.output}: {about}")
    return 0


def _base(args: argparse.Namespace) -> FactorSet | None:
    """Return the set that ``--from`` and ``--set`` name."""
    if args.base is None:
        if args.base_set is not None:
            raise FactorError(f"--set: {args.base_set!r} requires --from FILE")
        return None
    ladder = file.load(args.base).ladder
    if args.base_set is None:
        return ladder.sets[-1]
    if args.base_set not in ladder.names:
        raise FactorError(f"--set: {args.base_set!r} is not in {args.base!r}, which has {', '.join(ladder.names)}")
    return ladder.sets[ladder.names.index(args.base_set)]
