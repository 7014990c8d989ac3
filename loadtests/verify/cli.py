"""The ``ropeswitch verify`` command: its flags, and the table that it prints."""

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors.errors import FactorError, InputError, UsageError
from ropeswitch.factors.files import check_target, save_text
from ropeswitch.factors.numbers import LARGEST, flag, number, tokens, whole
from ropeswitch.factors.text_table import table

if TYPE_CHECKING:
    from ropeswitch.factors.evaluate.endpoint import Endpoint
    from ropeswitch.factors.evaluate.tokenizers import Tokenizer
    from ropeswitch.loadtests.verify.plan import Ladder, Words
    from ropeswitch.loadtests.verify.run import Verification

EXAMPLES = """\
examples:
  ropeswitch verify http://127.0.0.1:8000
  ropeswitch verify http://127.0.0.1:8000 --reference /models/llama --longest 256k
exit codes: 0 exact; 1 an answer differs; 2 bad input, or it cannot be told; 130 interrupted
"""
LONGEST = "128k"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``verify`` to the commands of ``ropeswitch``."""
    about = "compare a running server's answers around each limit of its ladder with the same tokens scored whole"
    parser = commands.add_parser(
        "verify", help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(func=main)
    add = parser.add_argument
    add("url", metavar="URL", help="server URL; the API key is read from OPENAI_API_KEY")
    add("--model", help="model to request (default: the first model the server lists)")
    add(
        "--longest",
        default=LONGEST,
        metavar="TOKENS",
        help=f"longest prompts, around fewer limits (default: {LONGEST})",
    )
    add("--reference", metavar="DIR",
        help="the served model's folder: also compare each set with Transformers in float32, on this machine")  # fmt: skip
    add("--factors", metavar="FILE", help="factor file that the server was started with, for --reference")
    add("--tokenizer", metavar="DIR", help="folder of the served model's tokenizer, for servers without /tokenize")
    add("--wait", type=flag(number, 0, 86_400), default=0.0, metavar="S", help="maximum seconds to wait for the server")
    add("--insecure", action="store_true", help="do not check the server's certificate")
    add("--ca", metavar="FILE", help="PEM file of certificates to trust in addition to the system's")
    add(
        "--timeout",
        type=flag(whole, 1, LARGEST),
        default=3600,
        metavar="SECONDS",
        help="of one request (default: 3600)",
    )
    add("-o", "--output", metavar="FILE", help="also write the result as JSON")


def main(args: argparse.Namespace) -> int:
    """Run the command; InputError where nothing can be told."""
    longest = tokens("--longest", args.longest, 64, "a number of tokens, at least 64, such as 8192 or 128k")
    if args.factors is not None and args.reference is None:
        raise UsageError("--factors: applies to --reference only")
    if args.output is not None:
        check_target("--output", Path(args.output), overwrite=False)
    try:
        return _first_error(args, longest)
    except KeyboardInterrupt:
        print("\nropeswitch verify: interrupted; nothing was decided", file=sys.stderr)
        return 130


def _first_error(args: argparse.Namespace, longest: int) -> int:
    # The first error cancels the other requests.
    try:
        return asyncio.run(_verify(args, longest))
    except* InputError as errors:
        group: BaseException = errors
        while isinstance(group, BaseExceptionGroup):
            group = group.exceptions[0]
        raise group from None


async def _verify(args: argparse.Namespace, longest: int) -> int:
    import numpy as np

    from ropeswitch.factors.evaluate.endpoint import connect
    from ropeswitch.factors.evaluate.posts import posting
    from ropeswitch.factors.evaluate.target import special_tokens
    from ropeswitch.factors.evaluate.tokenizers import LocalTokenizer, ServedTokenizer
    from ropeswitch.loadtests.verify.ask import Client
    from ropeswitch.loadtests.verify.plan import limits
    from ropeswitch.loadtests.verify.run import DIFFERS, UNKNOWN, Verification

    endpoint = connect(args.url, args.model, args.ca, args.wait, args.insecure)
    ladder = _ladder(endpoint)
    ends = limits(ladder, longest)
    if not ends:
        raise FactorError(
            f"--longest {args.longest}: the shortest set ends at {ladder.ends[0]:,} tokens; allow that many"
        )
    tokenizer = ServedTokenizer(endpoint) if args.tokenizer is None else LocalTokenizer(args.tokenizer)
    words = _words(tokenizer, special_tokens(tokenizer.text)[0], max(ends), np.random.default_rng())
    async with posting(endpoint, args.timeout, concurrency=64) as posts:
        client = Client(posts, f"verify-{secrets.token_hex(8)}")
        run = Verification(client, ladder, words, lambda line: print(f"verify: {line}", file=sys.stderr, flush=True))
        await run.run(ends, tokenizer)
        if args.reference is not None:
            from ropeswitch.loadtests.verify.reference import Reference

            await run.compare(Reference.load(args.reference, args.factors, ladder.longest), ends)
    now = connect(args.url, args.model, args.ca, 0, args.insecure)
    if (now, now.sets) != (endpoint, endpoint.sets):
        raise FactorError(f"{endpoint.url}: the model or its ladder changed during the run; run it again")
    verdicts = {key: run.verdict(row) for key, row in run.rows.items()}
    _show(run, verdicts, [end for end in ladder.ends if end not in ends])
    if args.output is not None:
        save_text(args.output, json.dumps(_results(run, verdicts), indent=1) + "\n")
    found = set(verdicts.values())
    return 1 if DIFFERS in found else 2 if UNKNOWN in found else 0


def _ladder(endpoint: "Endpoint") -> "Ladder":
    from ropeswitch.loadtests.verify.plan import Ladder

    if not endpoint.sets:
        raise FactorError(
            f"{endpoint.url}: lists no factor sets at /v1/rope, so it cannot be told which one a request should have; start "
            "it with ropeswitch serve, or vllm serve with VLLM_PLUGINS=ropeswitch"
        )
    if endpoint.max_model_len is None:
        raise FactorError(f"{endpoint.url}/v1/models: states no max_model_len")
    sets = sorted(endpoint.sets, key=lambda each: each["max_length"])
    rope = endpoint.get("/v1/rope").json
    return Ladder(
        tuple(each["name"] for each in sets),
        tuple(each["max_length"] for each in sets),
        str(rope.get("policy")),
        min(endpoint.max_model_len, sets[-1]["max_length"]),
        str(rope.get("dtype")),
    )


def _words(tokenizer: "Tokenizer", opening: tuple[int, ...], tokens: int, random: Any) -> "Words":
    """Tokenize Python's manual, which is part of Python: English that no small model is sure of."""
    from pydoc_data.topics import topics

    from ropeswitch.loadtests.verify.plan import Words

    ids: list[int] = []
    for text in topics.values():
        ids += tokenizer.text(text, False)
        if len(ids) > 2 * tokens:
            break
    return Words(opening, ids, random)


def _show(run: "Verification", verdicts: Mapping[tuple[int, str, str], str], left_out: Sequence[int]) -> None:
    from ropeswitch.loadtests.verify.plan import ALONE

    heads = ("limit", "mode", "prompt", "requests", "worst error", "tolerance", "sets apart", "")
    rows = [heads] + [
        (
            f"{row.limit:,}", row.how, row.where, str(len(row.errors)), f"{row.worst:.2g}",
            f"{run.allowed(row):.2g}", f"{apart:.2g}" if row.how != ALONE and (apart := run.apart.get(row.limit)) else "",
            verdicts[key],
        )
        for key, row in run.rows.items()
    ]  # fmt: skip
    print(table(rows))
    for row in run.rows.values():
        for fault in dict.fromkeys(row.faults):
            print(f"{row.limit:,} tokens, {row.how}, {row.where}: {fault}")
    for end, apart in run.apart.items():
        if apart <= run.tolerance():
            alike = f"the sets on both sides score the same tokens alike (difference {apart:.2g})"
            print(f"cannot tell around {end:,} tokens: {alike}")
    if left_out:
        print(f"not tried: {', '.join(f'{end:,}' for end in left_out)} tokens (--longest)")


def _results(run: "Verification", verdicts: Mapping[tuple[int, str, str], str]) -> dict[str, Any]:
    rows = [vars(row) | {"tolerance": run.allowed(row), "verdict": verdicts[key]} for key, row in run.rows.items()]
    return {
        "url": run.client.posts.endpoint.url,
        "model": run.client.posts.endpoint.model,
        "apart": run.apart,
        "rows": rows,
    }
