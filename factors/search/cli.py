"""The ``ropeswitch factors search`` and ``ropeswitch factors extend`` commands."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.files import check_target
from ropeswitch.factors.rules.lengths import length_name, parse_length, parse_lengths

if TYPE_CHECKING:
    from ropeswitch.factors.search.job import Job

SEARCH_EXAMPLE = """examples:
  ropeswitch factors search Llama-2-7b-hf --length 32k --text books/ -o 32k.json
  ropeswitch factors search Llama-2-7b-32k --length 256k --text books/ --from 32k.json -o 256k.json
  ropeswitch factors search Llama-2-7b-32k --recover 4k,8k --text books/ --from 256k.json --set 256k -o llama2.json
"""
EXTEND_EXAMPLE = """example:
  ropeswitch factors extend Llama-2-7b-hf --lengths 128k,256k --final 2048k --recover 4k,8k \\
      --text books/ --hook ./fine-tune.sh -o llama2.json

--hook runs once for each of --lengths, with EXTEND_MODEL, EXTEND_FACTORS (a factor file), EXTEND_SET and
EXTEND_LENGTH in its environment. It must leave the fine-tuned model and its tokenizer in the folder EXTEND_OUTPUT.
"""
# Flags that override the paper's numbers; each is a field of SearchSettings.
NUMBERS = {
    "documents": "texts to evaluate on (default: 5; 3 above 512k)",
    "tokens_judged": "score only the last N tokens of each text (default: all)",
    "population": "candidates before the first iteration (default: 64; 32 above 512k)",
    "mutations": "candidates per iteration mutated from one parent (default: 16; 8 above 512k)",
    "crossovers": "candidates per iteration crossed from two parents (default: 16; 8 above 512k)",
    "parents": "best candidates so far that become parents (default: 32, or --population if smaller)",
    "iterations": "number of iterations (default: 40)",
    "seed": "random seed (default: 0)",
}


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add ``search`` and ``extend`` to the commands of ``ropeswitch factors``."""
    raw = argparse.RawDescriptionHelpFormatter
    about = "search for factors at a longer length, or at a shorter one on an extended model"
    parser = commands.add_parser("search", help=about, epilog=SEARCH_EXAMPLE, formatter_class=raw)
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
    add("--name", metavar="NAME", help="name of the new set (default: its length)")
    _add_common_flags(parser)
    parser.set_defaults(func=_resumable(_search))

    about = "extend a model progressively: search, fine-tune with a hook, search again; writes one ladder"
    parser = commands.add_parser("extend", help=about, epilog=EXTEND_EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder or Hugging Face name of the pre-trained model")
    add("--lengths", required=True, metavar="N,N", help="increasing lengths to search and then fine-tune for")
    add("--final", required=True, metavar="N", help="length to search on the fine-tuned model")
    add("--recover", metavar="N,N", help="shorter lengths to search on the fine-tuned model")
    add("--hook", required=True, metavar="COMMAND", help="command that fine-tunes the model; see below")
    add("--work", metavar="DIR", help="folder for the results of stages (default: FILE-work, next to FILE)")
    _add_common_flags(parser)
    parser.set_defaults(func=_resumable(_extend))


def _add_common_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    texts = "folder of documents: .txt files, or .jsonl files with a text per line"
    add("--text", required=True, metavar="DIR", help=texts)
    add("-o", "--output", required=True, metavar="FILE", help="factor file to write")
    add("--scale", help="multiplier of cos and sin: longrope (default), none (1, as in the paper) or a number")
    for name, text in NUMBERS.items():
        add(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    redrawn = "probability that a mutation redraws a factor or the start tokens (default: 0.3)"
    add("--probability", type=float, metavar="P", help=redrawn)
    add("--no-monotone", action="store_true", help="allow factors to decrease from one frequency to the next")
    dtypes = ("float32", "bfloat16", "float16")
    add("--dtype", default="float32", choices=dtypes, help="dtype of the weights (default: float32)")
    add("--window", metavar="N", help="original window of the model, in tokens (default: from its config)")
    add("--force", action="store_true", help="overwrite FILE if it exists")


def _job(args: argparse.Namespace, length: int, name: str, base: FactorSet | None, *, recover: bool = False) -> "Job":
    """Build the search that the flags describe: the paper's settings with the flags applied."""
    from ropeswitch.factors.search.job import Job
    from ropeswitch.factors.search.settings import SearchSettings

    changes = {name: getattr(args, name) for name in (*NUMBERS, "probability")}
    return Job(
        model=args.model,
        text=args.text,
        settings=SearchSettings.paper(length, monotone=not args.no_monotone, **changes),
        name=name,
        base=base,
        recover=recover,
        scale=args.scale or "longrope",
        dtype=args.dtype,
        window=None if args.window is None else parse_length("--window", args.window),
    )


def _resumable(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Wrap a command so that Ctrl-C prints one line and exits with code 130, after the search has saved its results."""

    def run(args: argparse.Namespace) -> int:
        check_target("--output", args.output, overwrite=args.force)
        try:
            return command(args)
        except KeyboardInterrupt:
            print("stopped; run the same command again to resume", file=sys.stderr)
            return 130

    return run


def _search(args: argparse.Namespace) -> int:
    if (args.length is None) == (args.recover is None):
        raise FactorError("factors search: give either --length, or --recover for shorter lengths of an extended model")
    return _longer(args) if args.recover is None else _recover(args)


def _longer(args: argparse.Namespace) -> int:
    from ropeswitch.factors.search.job import run_job

    length = parse_length("--length", args.length)
    content, base = _base(args)
    theta = None if content is None else content.theta
    job = replace(_job(args, length, args.name or length_name(length), base), upper=args.upper, theta=theta)
    result = run_job(job, Path(args.output).with_suffix(".checkpoint.jsonl"))
    about = f"{job.name}: perplexity {result.perplexity:.4f} on {job.settings.documents} texts of {length} tokens"
    return _write(args, [result.factor_set], result.theta, about)


def _recover(args: argparse.Namespace) -> int:
    from ropeswitch.factors.model_facts import ModelFacts
    from ropeswitch.factors.search.job import run_job
    from ropeswitch.factors.search.plan import check_recovered

    lengths = parse_lengths("--recover", args.recover)
    if len(lengths) > 1 and args.name is not None:
        raise FactorError(f"--name: applies to one length, but --recover lists {len(lengths)}")
    if args.scale is not None:
        raise FactorError(f"--scale: {args.scale!r} applies to --length only; a recovered set keeps its scale")
    names = [args.name or length_name(length) for length in lengths]
    content, base = _base(args)
    ladder = ModelFacts.load(args.model).ladder if content is None else content.ladder
    if ladder is None:
        raise FactorError(
            f"--recover: the config of {args.model!r} has no LongRoPE factors; give its factor file with --from FILE"
        )
    base, theta = base or ladder.sets[-1], None if content is None else content.theta
    kept = [each for each in ladder.sets if each.max_length > lengths[-1]]
    # Before the first search, which may take hours.
    check_recovered(lengths[-1], base)
    if taken := {each.name for each in kept}.intersection(names):
        raise FactorError(f"--name: {min(taken)!r} is the name of a longer set, which is kept; use another name")
    found, about = [], []
    for length, name in zip(lengths, names, strict=True):
        job = replace(_job(args, length, name, base, recover=True), upper=args.upper, theta=theta)
        result = run_job(job, Path(f"{Path(args.output).with_suffix('')}.{name}.checkpoint.jsonl"))
        found.append(result.factor_set)
        about.append(f"{job.name}: perplexity {result.perplexity:.4f}")
    return _write(args, found + kept, result.theta, f"recovered {', '.join(about)} on texts of that length")


def _write(args: argparse.Namespace, sets: list[FactorSet], theta: float, about: str) -> int:
    description = f"{Path(args.model).name or args.model}, evolution search; {about}"
    content = file.LadderFile(FactorLadder.checked(FactorLadder(tuple(sets)).to_json()), theta, description)
    file.save(args.output, content, overwrite=args.force)
    print(f"wrote {args.output}: {about}")
    return 0


def _base(args: argparse.Namespace) -> tuple[file.LadderFile | None, FactorSet | None]:
    """Return the file of ``--from`` and the set in it that ``--set`` names."""
    if args.base is None:
        if args.base_set is not None:
            raise FactorError(f"--set: {args.base_set!r} requires --from FILE")
        return None, None
    content = file.load(args.base)
    return content, content.ladder.sets[-1] if args.base_set is None else content.ladder.named("--set", args.base_set)


def _extend(args: argparse.Namespace) -> int:
    from ropeswitch.factors.model_facts import ModelFacts
    from ropeswitch.factors.search.extend import Extension, extend

    output = Path(args.output)
    plan = Extension(
        model=args.model,
        lengths=parse_lengths("--lengths", args.lengths),
        final=parse_length("--final", args.final),
        recover=() if args.recover is None else parse_lengths("--recover", args.recover),
        hook=args.hook,
        work=output.with_suffix("").with_name(f"{output.stem}-work") if args.work is None else Path(args.work),
    )
    # The fine-tuned model's config may no longer contain the window.
    window = (args.window and parse_length("--window", args.window)) or ModelFacts.load(args.model).rope.original_length

    def make_job(length: int, model: str, base: FactorSet | None, recover: bool) -> "Job":
        return replace(_job(args, length, length_name(length), base, recover=recover), model=model, window=window)

    content = extend(plan, make_job)
    file.save(args.output, content, overwrite=args.force)
    print(f"wrote {args.output}: {', '.join(f'{s.name} up to {s.max_length} tokens' for s in content.ladder.sets)}")
    return 0
