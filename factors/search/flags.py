"""Flags common to all searches, and the job that they describe. Imports nothing heavy."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.rules.lengths import parse_length
from ropeswitch.factors.whole_file import check_target

if TYPE_CHECKING:
    from ropeswitch.factors.search.job import Job
    from ropeswitch.factors.search.run import Files
    from ropeswitch.factors.search.settings import SearchSettings

# Flags that override the paper's numbers; each is a field of SearchSettings.
NUMBERS = {
    "documents": "texts to evaluate on (default: 5; 3 above 512k; 10 for needle)",
    "tokens_judged": "score only the last N tokens of each text (default: all)",
    "population": "candidates before the first iteration (default: 64; 32 above 512k)",
    "mutations": "candidates per iteration mutated from one parent (default: 16; 8 above 512k)",
    "crossovers": "candidates per iteration crossed from two parents (default: 16; 8 above 512k)",
    "parents": "best candidates so far that become parents (default: 32, or --population if smaller)",
    "iterations": "number of iterations (default: 40)",
    "seed": "random seed (default: 0)",
}


def add_search_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags common to all searches."""
    add = parser.add_argument
    add(
        "--text",
        required=True,
        metavar="DIR",
        help="folder of documents: .txt files, or .jsonl files with a text per line",
    )
    add("--scale", help="multiplier of cos and sin: longrope (default), none (1, as in the paper) or a number")
    add("--method", choices=("evolution", "random"), default="evolution", help="search method (default: evolution)")
    add(
        "--objective",
        choices=("perplexity", "needle"),
        default="perplexity",
        help="perplexity of all tokens, or of the answers to hidden pass keys (default: perplexity)",
    )
    for name, text in NUMBERS.items():
        add(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    add(
        "--probability",
        type=float,
        metavar="P",
        help="probability that a mutation redraws a factor or the start tokens (default: 0.3)",
    )
    add("--no-monotone", action="store_true", help="allow factors to decrease from one frequency to the next")
    add(
        "--evaluator",
        choices=("auto", "transformers", "engine"),
        default="auto",
        help="runtime that evaluates candidates (default: engine with a GPU, else transformers)",
    )
    add(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of the weights (default: float32)",
    )
    add("--parallel", type=int, default=1, metavar="N", help="GPUs to split the model over, engine only (default: 1)")
    add("--window", metavar="N", help="original window of the model, in tokens (default: from its config)")
    add("--force", action="store_true", help="overwrite FILE if it exists")


def settings_of(args: argparse.Namespace, length: int) -> "SearchSettings":
    """Return the paper's settings with the flags applied."""
    from ropeswitch.factors.search.settings import SearchSettings

    changes = {name: getattr(args, name) for name in (*NUMBERS, "probability", "method")}
    return SearchSettings.paper(length, args.objective, monotone=not args.no_monotone, **changes)


def job_of(args: argparse.Namespace, length: int, name: str, base: FactorSet | None, *, recover: bool = False) -> "Job":
    """Build the search that the flags describe.

    Raises:
        FactorError: naming the number that is out of range.
    """
    from ropeswitch.factors.search.job import Job

    if args.parallel < 1:
        raise FactorError(f"--parallel: {args.parallel} must be a whole number of at least 1")
    return Job(
        model=args.model,
        text=args.text,
        settings=settings_of(args, length),
        name=name,
        base=base,
        recover=recover,
        scale=args.scale or "longrope",
        evaluator=args.evaluator,
        dtype=args.dtype,
        parallel=args.parallel,
        window=None if args.window is None else parse_length("--window", args.window),
    )


def resumable(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Wrap a command so that Ctrl-C prints one line and exits with code 130, after the search has saved its results."""

    def run(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except KeyboardInterrupt:
            print("stopped; run the same command again to resume", file=sys.stderr)
            return 130

    return run


def check_output(args: argparse.Namespace, searches: Sequence["Files"] = ()) -> None:
    """Refuse, before hours of work, an output that cannot be written or that would replace an unrelated file.

    Args:
        args: The flags.
        searches: Files of every search, next to the output.

    Raises:
        FactorError: when a file exists and is neither covered by ``--force`` nor resumed by a search, when the output has
            the plot's name, or when a folder is missing or not writable.
    """
    output = Path(args.output)
    check_target("--output", output, overwrite=args.force)
    for files in searches:
        if output == files.plot:
            raise FactorError(f"--output: {str(output)!r} is the name of the search's plot; end it in .json")
        check_beside(files, overwrite=args.force)


def check_beside(files: "Files", *, overwrite: bool = False) -> None:
    """Refuse a log or plot that a search would replace although it belongs to no search.

    Files next to a checkpoint belong to its search, which resumes, or rejects the checkpoint before it writes either.

    Raises:
        FactorError: when one exists without a checkpoint and ``overwrite`` is False, or a file cannot be written.
    """
    check_target("the checkpoint", files.checkpoint, overwrite=True)
    goes_on = files.checkpoint.exists()
    for name, path in (("the log", files.log), ("the plot", files.plot)):
        check_target(name, path, overwrite=overwrite or goes_on)
