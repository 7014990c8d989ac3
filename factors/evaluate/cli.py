"""The ``ropeswitch factors eval`` command: compares factor sets by perplexity and retrieval."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.numbers import LARGEST, tokens, whole
from ropeswitch.factors.whole_file import check_target, save_text

if TYPE_CHECKING:
    from ropeswitch.factors.evaluate.target import Target

EXAMPLE = """examples:
  ropeswitch factors eval MODEL --text books --tasks perplexity,passkey --lengths 4k,8k,32k \\
      --sets switched,short,long -o results.json --plots plots
  ropeswitch factors eval http://127.0.0.1:8000 --tasks passkey --lengths 8k,128k -o served.json
"""
INTERRUPTED = 130
"""Exit code after SIGINT, as in shells."""
# Flags for a local model.
LOCAL_FLAGS = ("factors", "candidate", "dtype")
REMOTE_FLAGS = ("model", "tokenizer", "timeout", "concurrency")
DOCUMENTS, WINDOWS, TRIES = "10", "10", "10"
"""Defaults. A flag that is given must apply to a chosen task, so argparse must not fill these in."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command; ``func`` raises InputError for invalid input."""
    parser = subparsers.add_parser(
        "eval",
        help="measure perplexity and pass-key retrieval with the factor sets of a model or server",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("target", metavar="MODEL|URL", help="model folder, or http(s) URL of an OpenAI-compatible server")
    add(
        "--tasks",
        metavar="NAMES",
        help="tasks to run: perplexity, passkey (default: passkey, and perplexity if --text is given)",
    )
    add("--lengths", required=True, metavar="TOKENS", help="lengths of windows and prompts, such as 512,1k,128k,2m")
    add(
        "--sets",
        metavar="NAMES",
        help="sets to compare: names, or switched for the set that fits the length (default: all)",
    )
    add("--seeds", default="1", metavar="N", help="number of independent draws (default: 1)")
    add("--text", metavar="DIR", help='text file, or folder of them: *.txt, or *.jsonl with a "text" field')
    add(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="JSON file to write; finished cells are kept in FILE.cells.jsonl",
    )
    add("--plots", metavar="DIR", help="also plot the results to this folder, as PNG and SVG")
    add("--force", action="store_true", help="overwrite FILE if it exists; finished cells are kept")

    group = parser.add_argument_group("perplexity")
    add = group.add_argument
    add("--documents", metavar="N", help=f"documents per length and seed (default: {DOCUMENTS})")
    add("--windows", metavar="N", help=f"maximum windows per document (default: {WINDOWS})")
    add("--stride", metavar="TOKENS", help="tokens between window starts (default: 256; 256k for lengths above 256k)")
    add(
        "--judge-last",
        metavar="TOKENS",
        help="score at most this many tokens at the end of a window (default: all new ones)",
    )

    group = parser.add_argument_group("pass keys")
    add = group.add_argument
    add("--tries", metavar="N", help=f"prompts per length and seed (default: {TRIES})")
    add("--chat", action="store_true", help="send prompts as chat messages, through the chat template")

    group = parser.add_argument_group("local model")
    add = group.add_argument
    add("--factors", metavar="FILE", help="factor file (default: the sets of the model's config.json)")
    add(
        "--candidate",
        action="append",
        metavar="NAME=FILE:SET",
        help="another set to compare, from another factor file; repeatable",
    )
    add("--dtype", metavar="TYPE", help="dtype of the weights: float32 (default), bfloat16 or float16")

    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--model", metavar="NAME", help="model name to request (default: the first that the server lists)")
    add("--tokenizer", metavar="DIR", help="tokenizer of the served model, for servers without /tokenize")
    add("--timeout", metavar="SECONDS", help="timeout of one request (default: 3600)")
    add("--concurrency", metavar="N", help="requests in flight (default: 4)")
    parser.set_defaults(func=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    from ropeswitch.factors.evaluate.cells import Cells
    from ropeswitch.factors.evaluate.corpus import Corpus
    from ropeswitch.factors.evaluate.perplexity import PERPLEXITY, PerplexitySettings
    from ropeswitch.factors.evaluate.results import rows, table, to_json
    from ropeswitch.factors.evaluate.run import Evaluation, Grid

    output = Path(args.output)
    check_target("--output", output, overwrite=args.force)
    if args.plots is not None:
        _check_folder("--plots", Path(args.plots))
    default_tasks = "passkey" if args.text is None else f"{PERPLEXITY},passkey"
    tasks = _names("--tasks", args.tasks or default_tasks)
    _refuse_unused(args, tasks)
    settings = PerplexitySettings(
        _count("--documents", args.documents or DOCUMENTS),
        _count("--windows", args.windows or WINDOWS),
        None if args.stride is None else _tokens("--stride", args.stride),
        None if args.judge_last is None else _tokens("--judge-last", args.judge_last),
    )
    lengths = tuple(sorted({_tokens("--lengths", part) for part in args.lengths.split(",")}))
    seeds = tuple(range(_count("--seeds", args.seeds)))
    tries = _count("--tries", args.tries or TRIES)
    corpus = None if args.text is None else Corpus.read(args.text)
    target = _target(args)
    sets = target.sets if args.sets is None else _names("--sets", args.sets)
    grid = Grid(tasks, lengths, sets, seeds, tries)
    evaluation = Evaluation(target, grid, corpus, settings, args.chat).checked()
    meanings = {name: target.describe_set(name) for name in target.sets}
    cells = Cells(output.with_name(output.name + ".cells.jsonl"), evaluation.settings(), meanings)
    try:
        found = evaluation.run(cells)
    except KeyboardInterrupt:
        kept = sum(cell in cells.found for cell in grid.cells())
        print(
            f"\nfactors eval: interrupted; {kept} of {len(grid.cells())} cells are saved in {cells.path}. Run the same "
            "command again to resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    made = rows(found)
    text = json.dumps(to_json(evaluation, found, made), indent=1, allow_nan=False) + "\n"
    save_text(output, text, overwrite=args.force)
    print(table(made), end="")
    if args.plots is not None:
        from ropeswitch.factors.evaluate.plots import draw

        for path in draw(made, Path(args.plots)):
            print(f"wrote {path}")
    print(f"wrote {args.output}")
    return 0


def _refuse_unused(args: argparse.Namespace, tasks: tuple[str, ...]) -> None:
    from ropeswitch.factors.evaluate.passkey import PASSKEY
    from ropeswitch.factors.evaluate.perplexity import PERPLEXITY

    task_of = dict.fromkeys(("text", "documents", "windows", "stride", "judge_last"), PERPLEXITY)
    task_of |= dict.fromkeys(("tries", "chat"), PASSKEY)
    for flag, task in task_of.items():
        if getattr(args, flag) not in (None, False) and task not in tasks:
            raise FactorError(
                f"--{flag.replace('_', '-')}: applies to {task}, which is not among --tasks ({', '.join(tasks)})"
            )


def _check_folder(flag: str, folder: Path) -> None:
    """Reject a folder that cannot be created or written to, before hours of work."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise FactorError(f"{flag}: {str(there)!r} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FactorError(f"{flag}: {str(there)!r} is not writable")


def _target(args: argparse.Namespace) -> "Target":
    is_url = args.target.startswith(("http://", "https://"))
    for flag in LOCAL_FLAGS if is_url else REMOTE_FLAGS:
        if getattr(args, flag) is not None:
            place = "a local model" if is_url else "a server"
            raise FactorError(f"--{flag}: applies to {place} only")
    if is_url:
        from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget

        return EndpointTarget.connect(
            args.target,
            args.model,
            args.tokenizer,
            args.chat,
            timeout=_count("--timeout", args.timeout or "3600"),
            concurrency=_count("--concurrency", args.concurrency or "4"),
        )
    from ropeswitch.factors.evaluate.local_target import LocalTarget
    from ropeswitch.factors.local_model import LocalModel

    dtype = args.dtype or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise FactorError(f"--dtype: {dtype!r} must be float32, bfloat16 or float16")
    factors = None if args.factors is None else file.load(args.factors)
    chosen = [_candidate(text) for text in args.candidate or ()]
    model = LocalModel.load(args.target, dtype)
    for name, theta in [("--factors", factors.theta if factors else None), *((each[0], each[2]) for each in chosen)]:
        if theta is not None and theta != model.rope.theta:
            raise FactorError(f"{name}: made for rope_theta {theta:g}, but the model has {model.rope.theta:g}")
    names = [name for name, _, _ in chosen]
    if len(set(names)) != len(names):
        raise FactorError(f"--candidate: names must be unique, found {', '.join(names)}")
    ladder = factors.ladder if factors else model.ladder
    return LocalTarget(args.target, model, ladder, {name: each for name, each, _ in chosen}, args.chat)


def _candidate(text: str) -> tuple[str, FactorSet, float | None]:
    name, is_given, rest = text.partition("=")
    path, has_set, set_name = rest.rpartition(":")
    if not (name and is_given and path and has_set and set_name):
        raise FactorError(f"--candidate: {text!r} must be NAME=FILE:SET, such as yarn=yarn.json:yarn")
    content = file.load(path)
    if set_name not in content.ladder.names:
        known = ", ".join(map(repr, content.ladder.names))
        raise FactorError(f"--candidate: {path!r} has no set {set_name!r}; it has {known}")
    return name, content.ladder.sets[content.ladder.names.index(set_name)], content.theta


def _names(flag: str, text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise FactorError(f"{flag}: {text!r} must be unique names, separated by commas")
    return tuple(names)


def _tokens(flag: str, text: str) -> int:
    return tokens(flag, text, 2, "a number of tokens, at least 2, such as 512, 128k or 2m")


def _count(flag: str, text: str) -> int:
    return whole(flag, text, 1, LARGEST, "a whole number of at least 1")
