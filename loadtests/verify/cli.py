"""The ``ropeswitch verify`` command: its flags, and the table that it prints."""

import argparse
import asyncio
import secrets
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ropeswitch.factors.errors import FactorError, InputError, UsageError
from ropeswitch.factors.files import check_target, save_text
from ropeswitch.factors.ladders.choice import AUTO, Choice, from_flags, parse
from ropeswitch.factors.numbers import LARGEST, flag, number, tokens, whole

if TYPE_CHECKING:
    from ropeswitch.factors.evaluate.endpoint import Endpoint
    from ropeswitch.factors.evaluate.tokenizers import Tokenizer
    from ropeswitch.loadtests.verify.plan import Case, Ladder, Words
    from ropeswitch.loadtests.verify.reference import Reference
    from ropeswitch.loadtests.verify.run import Verification

T = TypeVar("T")

EXAMPLES = """\
examples:
  ropeswitch verify http://127.0.0.1:8000
  ropeswitch verify http://127.0.0.1:8000 --reference /models/llama --longest 16k
exit codes: 0 exact; 1 an answer differs; 2 bad input, or nothing to compare; 130 interrupted
"""
# What the bundled model takes 3 minutes for on two cores.
LONGEST = "48k"


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
    add("--longest", default=LONGEST, metavar="TOKENS", help=f"longest prompts, for fewer limits (default: {LONGEST})")
    add("--reference", metavar="DIR",
        help="the served model's folder: also compare each set with Transformers in float32, on this machine")  # fmt: skip
    add("--ladder", help="the server's --ladder (default: auto), for --reference")
    add("--factors", metavar="FILE", help="the server's factor file, for --reference")
    add("--tokenizer", metavar="DIR", help="folder of the served model's tokenizer, for servers without /tokenize")
    add("--wait", type=flag(number, 0, 86_400), default=0.0, metavar="S", help="maximum seconds to wait for the server")
    add("--insecure", action="store_true", help="do not check the server's certificate")
    add("--ca", metavar="FILE", help="PEM file of certificates to trust in addition to the system's")
    add("--timeout", type=flag(whole, 1, LARGEST), default=3600, metavar="S", help="of one request (default: 3600)")
    add("--concurrency", type=flag(whole, 1, 1000), default=16, metavar="N", help="requests in flight (default: 16)")
    add("--force", action="store_true", help="overwrite the file of -o if it exists")
    add("-o", "--output", metavar="FILE", help="also write the result as JSON")


def main(args: argparse.Namespace) -> int:
    """Run the command and return its exit code; InputError for bad input, or a server that cannot be verified."""
    import numpy as np

    from ropeswitch.factors.evaluate.endpoint import connect
    from ropeswitch.factors.evaluate.target import special_tokens
    from ropeswitch.factors.evaluate.tokenizers import LocalTokenizer, ServedTokenizer
    from ropeswitch.loadtests.verify.chats import chats
    from ropeswitch.loadtests.verify.plan import SHORTEST, limits

    allowed = f"a number of tokens, at least {SHORTEST}, such as 8192 or 128k"
    longest = tokens("--longest", args.longest, SHORTEST, allowed)
    choice = from_flags(args.ladder, args.factors)
    if choice is not None and args.reference is None:
        raise UsageError("--ladder and --factors: apply to --reference only")
    if args.output is not None:
        check_target("--output", Path(args.output), overwrite=args.force)
    try:
        endpoint = connect(args.url, args.model, args.ca, args.wait, args.insecure)
        rope = _rope(endpoint)
        ladder = _ladder(endpoint, rope, longest)
        if not (ends := limits(ladder)):
            raise FactorError(f"{endpoint.url}: takes {ladder.longest:,} tokens, but verification needs {SHORTEST}")
        tokenizer = ServedTokenizer(endpoint) if args.tokenizer is None else LocalTokenizer(args.tokenizer)
        words = _words(tokenizer, special_tokens(tokenizer.text)[0], max(ends), np.random.default_rng())
        talks = chats(tokenizer, ladder, ends, words, _say)
        reference = _reference(args.reference, choice or parse(AUTO), ladder)
        run, text, served = _first_error(_verify(args, endpoint, ladder, words, ends, talks, reference is not None))
        if (connect(args.url, args.model, args.ca, 0, args.insecure), _rope(endpoint)) != (endpoint, rope):
            raise FactorError(f"{endpoint.url}: the model or its ladder changed during the run; run it again")
        if reference is not None:
            run.compare(reference, text, served)
    except KeyboardInterrupt:
        print("\nropeswitch verify: interrupted; nothing was decided", file=sys.stderr)
        return 130
    return _decide(args, run, [end for end in ladder.ends if end not in ends])


def _first_error(running: Coroutine[Any, Any, T]) -> T:
    # The first error cancels the other requests.
    try:
        return asyncio.run(running)
    except* InputError as errors:
        group: BaseException = errors
        while isinstance(group, BaseExceptionGroup):
            group = group.exceptions[0]
        raise group from None


async def _verify(
    args: argparse.Namespace, endpoint: "Endpoint", ladder: "Ladder", words: "Words", ends: Sequence[int],
    talks: "Sequence[Case]", has_reference: bool,
) -> "tuple[Verification, tuple[int, ...], dict[str, list[float]]]":  # fmt: skip
    """Run the requests; return the run, and the server's scores of a text in each set, if there is a reference."""
    from ropeswitch.factors.evaluate.posts import posting
    from ropeswitch.loadtests.verify.ask import Client
    from ropeswitch.loadtests.verify.run import MOST_REFERENCE, Verification

    async with posting(endpoint, args.timeout, args.concurrency) as posts:
        run = Verification(Client(posts, f"verify-{secrets.token_hex(8)}"), ladder, words, _say)
        await run.run(ends, talks)
        # The server generates one token after them.
        text = words.cut(min(ends[0], MOST_REFERENCE, ladder.longest - 1))
        return run, text, await run.scored(text) if has_reference else {}


def _reference(folder: str | None, choice: Choice, ladder: "Ladder") -> "Reference | None":
    """Load the reference before the run, so that errors show before minutes of other work."""
    if folder is None:
        return None
    from ropeswitch.loadtests.verify.reference import Reference

    return Reference.load(folder, choice, ladder)


def _decide(args: argparse.Namespace, run: "Verification", left_out: Sequence[int]) -> int:
    """Print the table and write the file; return the exit code."""
    from ropeswitch.loadtests.verify import table
    from ropeswitch.loadtests.verify.run import DIFFERS, UNKNOWN

    verdicts = {key: run.verdict(row) for key, row in run.rows.items()}
    print("\n".join(table.lines(run, verdicts, left_out)))
    if args.output is not None:
        save_text(args.output, table.to_json(run, verdicts, left_out), overwrite=args.force)
    found = set(verdicts.values())
    return 1 if DIFFERS in found else 2 if UNKNOWN in found else 0


def _rope(endpoint: "Endpoint") -> Any:
    if not endpoint.sets:
        raise FactorError(
            f"{endpoint.url}: lists no factor sets at /v1/rope, so the set of a request is unknown; start "
            "it with ropeswitch serve, or vllm serve with VLLM_PLUGINS=ropeswitch"
        )
    return endpoint.get("/v1/rope").json


def _ladder(endpoint: "Endpoint", rope: Any, longest: int) -> "Ladder":
    from ropeswitch.loadtests.verify.plan import Ladder

    try:
        return Ladder.of(rope, longest)
    except (KeyError, TypeError, ValueError) as error:
        raise FactorError(f"{endpoint.url}/v1/rope: has no {error}; verify needs a server of this release") from error


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


def _say(line: str) -> None:
    print(f"verify: {line}", file=sys.stderr, flush=True)
