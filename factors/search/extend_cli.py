"""The ``ropeswitch factors extend`` command."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.rules.lengths import length_name, parse_length, parse_lengths
from ropeswitch.factors.search.flags import add_search_flags, check_output, job_of, resumable

EXAMPLE = """example:
  ropeswitch factors extend Llama-2-7b-hf --lengths 128k,256k --final 2048k --recover 4k,8k \\
      --text books/ --hook ./fine-tune.sh -o llama2.json

--hook runs once for each of --lengths, with EXTEND_MODEL, EXTEND_FACTORS (a factor file), EXTEND_SET and
EXTEND_LENGTH in its environment. It must leave the fine-tuned model and its tokenizer in the folder EXTEND_OUTPUT.
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add ``extend`` to the commands of ``ropeswitch factors``."""
    parser = commands.add_parser(
        "extend",
        help="extend a model progressively: search, fine-tune with a hook, search again; writes one ladder",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder or Hugging Face name of the pre-trained model")
    add("--lengths", required=True, metavar="N,N", help="increasing lengths to search and then fine-tune for")
    add("--final", required=True, metavar="N", help="length to search on the fine-tuned model")
    add("--recover", metavar="N,N", help="shorter lengths to search on the fine-tuned model")
    add("--hook", required=True, metavar="COMMAND", help="command that fine-tunes the model; see below")
    add("--work", metavar="DIR", help="folder for the results of stages (default: FILE-work, next to FILE)")
    add("-o", "--output", required=True, metavar="FILE", help="factor file to write")
    add_search_flags(parser)
    parser.set_defaults(func=resumable(_extend))


def _extend(args: argparse.Namespace) -> int:
    from ropeswitch.factors.search.extend import Extension, extend
    from ropeswitch.factors.search.job import Job
    from ropeswitch.factors.search.model_facts import ModelFacts

    check_output(args)
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
    if args.window is None:
        window = ModelFacts.load(args.model).rope.original_length
    else:
        window = parse_length("--window", args.window)

    def make_job(length: int, model: str, base: FactorSet | None, recover: bool) -> Job:
        job = job_of(args, length, length_name(length), base, recover=recover)
        return replace(job, model=model, window=window)

    content = extend(plan, make_job)
    file.save(args.output, content, overwrite=args.force)
    print(f"wrote {args.output}: {', '.join(f'{s.name} up to {s.max_length} tokens' for s in content.ladder.sets)}")
    return 0
