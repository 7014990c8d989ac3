"""The ``ropeswitch factors eval`` command: compares factor sets by perplexity and retrieval."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import check_target, save_text
from ropeswitch.factors.numbers import LARGEST, tokens, whole

if TYPE_CHECKING:
    from ropeswitch.factors.evaluate.target import Target

EXAMPLE = """examples:
  ropeswitch factors eval MODEL --text books --tasks perplexity,passkey --lengths 4k,8k,32k \\
      --sets switched,short,long -o results.json
  ropeswitch factors eval http://127.0.0.1:8000 --tasks passkey --lengths 8k,128k -o served.json
"""
INTERRUPTED = 130  # exit code after SIGINT, as in shells
# Flags for a local model, for a server, and for each task.
LOCAL_FLAGS = ("factors", "dtype")
REMOTE_FLAGS = ("model", "tokenizer", "timeout", "concurrency")
TASK_FLAGS = dict.fromkeys(("text", "documents", "windows", "stride", "judge_last"), "perplexity")
TASK_FLAGS |= dict.fromkeys(("tries", "chat"), "passkey")
DOCUMENTS, WINDOWS, TRIES = "10", "10", "10"
"""Defaults. A flag that is given must apply to a chosen task, so argparse must not fill these in."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command; ``func`` raises InputError for invalid input."""
    raw = argparse.RawDescriptionHelpFormatter
    about = "measure perplexity and pass-key retrieval with the factor sets of a model or server"
    parser = subparsers.add_parser("eval", help=about, epilog=EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    add("target", metavar="MODEL|URL", help="model folder, or http(s) URL of an OpenAI-compatible server")
    tasks = "tasks to run: perplexity, passkey (default: passkey, and perplexity if --text is given)"
    add("--tasks", metavar="NAMES", help=tasks)
    add("--lengths", required=True, metavar="TOKENS", help="lengths of windows and prompts, such as 512,1k,128k,2m")
    sets = "sets to compare: names, or switched for the set that fits the length (default: all)"
    add("--sets", metavar="NAMES", help=sets)
    add("--seeds", default="1", metavar="N", help="number of independent draws (default: 1)")
    add("--text", metavar="DIR", help='text file, or folder of them: *.txt, or *.jsonl with a "text" field')
    output = "JSON file to write; finished cells are kept in FILE.cells.jsonl"
    add("-o", "--output", required=True, metavar="FILE", help=output)
    add("--force", action="store_true", help="overwrite FILE if it exists; finished cells are kept")

    add = parser.add_argument_group("perplexity").add_argument
    add("--documents", metavar="N", help=f"documents per length and seed (default: {DOCUMENTS})")
    add("--windows", metavar="N", help=f"maximum windows per document (default: {WINDOWS})")
    add("--stride", metavar="TOKENS", help="tokens between window starts (default: 256; 256k for lengths above 256k)")
    judged = "score at most this many tokens at the end of a window (default: all new ones)"
    add("--judge-last", metavar="TOKENS", help=judged)

    add = parser.add_argument_group("pass keys").add_argument
    add("--tries", metavar="N", help=f"prompts per length and seed (default: {TRIES})")
    add("--chat", action="store_true", default=None, help="send prompts as chat messages, through the chat template")

    add = parser.add_argument_group("local model").add_argument
    add("--factors", metavar="FILE", help="factor file (default: the sets of the model's config.json)")
    add("--dtype", metavar="TYPE", help="dtype of the weights: float32 (default), bfloat16 or float16")

    add = parser.add_argument_group("server").add_argument
    add("--model", metavar="NAME", help="model name to request (default: the first that the server lists)")
    add("--tokenizer", metavar="DIR", help="tokenizer of the served model, for servers without /tokenize")
    add("--timeout", metavar="SECONDS", help="timeout of one request (default: 3600)")
    add("--concurrency", metavar="N", help="requests in flight (default: 4)")
    parser.set_defaults(func=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    from ropeswitch.factors.evaluate.corpus import Corpus
    from ropeswitch.factors.evaluate.perplexity import PerplexitySettings
    from ropeswitch.factors.evaluate.results import rows, table, to_json
    from ropeswitch.factors.evaluate.run import TASK, Evaluation, Grid
    from ropeswitch.factors.kept import Kept

    output = Path(args.output)
    check_target("--output", output, overwrite=args.force)
    tasks = _names("--tasks", args.tasks or ("passkey" if args.text is None else "perplexity,passkey"))
    for flag, task in TASK_FLAGS.items():
        if getattr(args, flag) is not None and task not in tasks:
            name = flag.replace("_", "-")
            raise FactorError(f"--{name}: applies to {task}, which is not among --tasks ({', '.join(tasks)})")
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
    grid = Grid(tasks, lengths, target.sets if args.sets is None else _names("--sets", args.sets), seeds, tries)
    evaluation = Evaluation(target, grid, corpus, settings, bool(args.chat)).checked()
    kept = Kept(output.with_name(output.name + ".cells.jsonl"), TASK)
    try:
        found = evaluation.run(kept)
    except KeyboardInterrupt:
        keys = [key in kept for key in evaluation.keys().values()]
        print(
            f"\nfactors eval: interrupted; {sum(keys)} of {len(keys)} cells are saved in {kept.path}. Run the same "
            "command again to resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    made = rows(found)
    text = json.dumps(to_json(evaluation, found, made), indent=1, allow_nan=False) + "\n"
    save_text(output, text, overwrite=args.force)
    print(table(made) + f"wrote {args.output}")
    return 0


def _target(args: argparse.Namespace) -> "Target":
    is_url = args.target.startswith(("http://", "https://"))
    for flag in LOCAL_FLAGS if is_url else REMOTE_FLAGS:
        if getattr(args, flag) is not None:
            raise FactorError(f"--{flag}: applies to {'a local model' if is_url else 'a server'} only")
    if is_url:
        from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget

        timeout, concurrency = args.timeout or "3600", args.concurrency or "4"
        return EndpointTarget.connect(
            args.target,
            args.model,
            args.tokenizer,
            bool(args.chat),
            timeout=_count("--timeout", timeout),
            concurrency=_count("--concurrency", concurrency),
        )
    from ropeswitch.factors.evaluate.local_target import LocalTarget
    from ropeswitch.factors.local_model import LocalModel

    dtype = args.dtype or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise FactorError(f"--dtype: {dtype!r} must be float32, bfloat16 or float16")
    factors = None if args.factors is None else file.load(args.factors)
    model = LocalModel.load(args.target, dtype)
    if factors is not None and factors.theta not in (None, model.rope.theta):
        raise FactorError(f"--factors: made for rope_theta {factors.theta:g}, but the model has {model.rope.theta:g}")
    return LocalTarget(args.target, model, factors.ladder if factors else model.ladder, bool(args.chat))


def _names(flag: str, text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise FactorError(f"{flag}: {text!r} must be unique names, separated by commas")
    return tuple(names)


def _tokens(flag: str, text: str) -> int:
    return tokens(flag, text, 2, "a number of tokens, at least 2, such as 512, 128k or 2m")


def _count(flag: str, text: str) -> int:
    return whole(flag, text, 1, LARGEST, "a whole number of at least 1")
