"""The flags that every search has, and the search that they ask for. Imports nothing heavy."""

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

# Flags that change the paper's numbers; each is a field of SearchSettings.
NUMBERS = {
    "documents": "texts to judge (default: 5; 3 above 512k; 10 needles)",
    "tokens_judged": "the last tokens of a text that count (default: all)",
    "population": "candidates before the first iteration (default: 64; 32 above 512k)",
    "mutations": "candidates an iteration makes of one parent each (default: 16; 8 above 512k)",
    "crossovers": "candidates an iteration makes of two parents each (default: 16; 8 above 512k)",
    "parents": "the best so far, of which new ones are made (default: 32, or population if that is less)",
    "iterations": "(default: 40)",
    "seed": "of everything that is drawn (default: 0)",
}


def add_search_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that every search has."""
    add = parser.add_argument
    add("--text", required=True, metavar="DIR", help="documents: .txt files, or .jsonl files with a text in every line")
    add("--scale", help="of cos and sin: longrope (default), none (the paper's) or a number")
    add("--method", choices=("evolution", "random"), default="evolution", help="(default: evolution)")
    add("--objective", choices=("perplexity", "needle"), default="perplexity", help="(default: perplexity)")
    for name, text in NUMBERS.items():
        add(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    add("--probability", type=float, metavar="P", help="probability that a mutation redraws a component (default: 0.3)")
    add("--no-monotone", action="store_true", help="let factors fall from one frequency to the next")
    add(
        "--evaluator",
        choices=("auto", "transformers", "engine"),
        default="auto",
        help="what judges (default: the faster)",
    )
    add(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="of the weights (default: float32)",
    )
    add("--parallel", type=int, default=1, metavar="N", help="GPUs that the engine splits the model over (default: 1)")
    add("--window", metavar="N", help="native window of the model in tokens (default: from its config)")
    add("--force", action="store_true", help="replace FILE if it exists")


def settings_of(args: argparse.Namespace, length: int) -> "SearchSettings":
    """The paper's settings with the flags' changes."""
    from ropeswitch.factors.search.settings import SearchSettings

    changes = {name: getattr(args, name) for name in (*NUMBERS, "probability", "method")}
    return SearchSettings.paper(length, args.objective, monotone=not args.no_monotone, **changes)


def job_of(args: argparse.Namespace, length: int, name: str, base: FactorSet | None, *, recover: bool = False) -> "Job":
    """The search that the flags ask for.

    Raises:
        FactorError: naming the number that no search can have.
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
    """A command that Ctrl-C ends with one line and exit code 130, after the search has kept what it evaluated."""

    def run(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except KeyboardInterrupt:
            print("stopped; the same command resumes", file=sys.stderr)
            return 130

    return run


def check_output(args: argparse.Namespace, searches: Sequence["Files"] = ()) -> None:
    """Refuse, before hours of work, an output that would not be written, or that would replace somebody else's file.

    Args:
        args: The flags.
        searches: The files of every search, beside the output.

    Raises:
        FactorError: when a file exists and neither ``--force`` is given nor a search goes on with it, when the output
            has the plot's name, or when a folder is missing or not writable.
    """
    output = Path(args.output)
    check_target("--output", output, overwrite=args.force)
    for files in searches:
        if output == files.plot:
            raise FactorError(f"--output: {str(output)!r} is the name of the search's plot; end it in .json")
        check_beside(files, overwrite=args.force)


def check_beside(files: "Files", *, overwrite: bool = False) -> None:
    """Refuse a log or plot that a search would replace though it is none of its own.

    Those beside a checkpoint are: the search goes on, or refuses the checkpoint, before it writes either.

    Raises:
        FactorError: when one exists without a checkpoint and ``overwrite`` is False, or a file could not be written.
    """
    check_target("the checkpoint", files.checkpoint, overwrite=True)
    goes_on = files.checkpoint.exists()
    for name, path in (("the log", files.log), ("the plot", files.plot)):
        check_target(name, path, overwrite=overwrite or goes_on)
