"""The flags of keys and limits, and what the processes that serve are told of them."""

import argparse
import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.numbers import flag, seconds, size, whole
from ropeswitch.server.errors import UsageError
from ropeswitch.server.front import tls
from ropeswitch.server.front.keys import MOST_KEYS, check_key, read_keys
from ropeswitch.server.front.shared_counts import CLASSES

# By this name vLLM finds the middleware that goes by what the flags say.
MIDDLEWARE = "ropeswitch.server.front.front.Front"
KEY_VARIABLE = "VLLM_API_KEY"
CONCURRENT_PER_KEY = 1024
BODY_SECONDS = 60.0
MOST_SECONDS = 3600.0
QUEUED_REQUESTS = 1024
# A body may have this many bytes for each token of the longest sequence, and this many at least: token IDs take about
# seven in JSON, a token of text four to six, and up to six times that where its characters are written as numbers.
BODY_BYTES_PER_TOKEN = 32
BODY_BYTES = 64 << 20
# So many of the largest bodies may be held at once.
HELD_BODIES = 8
# Tokens that may wait in a class: as many of its longest prompts, and this many at least.
QUEUED_PROMPTS = 16
QUEUED_TOKENS = 1 << 20
_COUNT = flag(whole, 1, 2**53)


@dataclass(frozen=True)
class FrontConfig:
    """What the flags say; it goes to every API server process with vLLM's arguments, and so holds no key.

    Attributes:
        key_digests: Of the keys that were given as such.
        key_file: The file with more of them, or None.
        metrics_digests: Of the key to the metrics that was given as such.
        metrics_key_file: The file with keys to the metrics, or None.
        max_body_bytes: None for what suits the longest sequence.
        max_held_body_bytes: None for as many of the largest bodies as :data:`HELD_BODIES`.
        body_timeout: Seconds.
        max_prompt_tokens: None for the longest that the model takes.
        max_queued_requests: By factor set; None is for the sets that are not named.
        max_queued_tokens: The same.
        max_concurrent_per_key: Requests.
        requests_per_minute_per_key: None for any number.
        refresh_tls: Whether the files of TLS are read again when they change.
        counts: The file of the shared counts.
    """

    key_digests: tuple[bytes, ...]
    key_file: str | None
    metrics_digests: tuple[bytes, ...]
    metrics_key_file: str | None
    max_body_bytes: int | None
    max_held_body_bytes: int | None
    body_timeout: float
    max_prompt_tokens: int | None
    max_queued_requests: Mapping[str | None, int]
    max_queued_tokens: Mapping[str | None, int]
    max_concurrent_per_key: int
    requests_per_minute_per_key: int | None
    refresh_tls: bool
    counts: str


def add(parser: Any) -> None:
    """Add the flags to ``vllm serve``'s parser."""
    group = parser.add_argument_group("Keys and limits", "Who may ask, and for how much.")
    group.add_argument(
        "--api-key-file", metavar="FILE", help="File of API keys, one a line; read again when it changes."
    )
    group.add_argument(
        "--metrics-key", metavar="KEY", help="Key that opens /metrics, which then needs it or an API key."
    )
    group.add_argument(
        "--metrics-key-file", metavar="FILE", help="File of such keys, one a line; read again when it changes."
    )
    group.add_argument("--max-body-bytes", type=size, metavar="SIZE", help="Largest body of a request.")
    group.add_argument(
        "--max-held-body-bytes",
        type=size,
        metavar="SIZE",
        help="What the bodies of all requests in hand may hold, in each API server process.",
    )
    group.add_argument(
        "--body-timeout",
        type=seconds(MOST_SECONDS),
        default=BODY_SECONDS,
        metavar="SECONDS",
        help="How long a request's headers may take, nothing may come of its body, and nothing be taken of its answer.",
    )
    group.add_argument("--max-prompt-tokens", type=_COUNT, metavar="N", help="Longest prompt, in tokens.")
    for unit, what in (("requests", "Requests"), ("tokens", "Prompt tokens")):
        group.add_argument(
            f"--max-queued-{unit}",
            type=of_class,
            nargs="+",
            metavar="[SET=]N",
            help=f"{what} that may wait for their first token, for prompts of each factor set or of one of them.",
        )
    group.add_argument(
        "--max-concurrent-per-key",
        type=_COUNT,
        default=CONCURRENT_PER_KEY,
        metavar="N",
        help="Requests that one API key may have in hand.",
    )
    group.add_argument(
        "--requests-per-minute-per-key", type=_COUNT, metavar="N", help="Requests of one API key a minute."
    )


def of_class(text: str) -> tuple[str | None, int]:
    """A limit of every length class, ``N``, or of one, ``SET=N``.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    name, equals, number = text.rpartition("=")
    if equals and not name:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number or SET=NUMBER")
    return name or None, _COUNT(number)


def take(
    args: argparse.Namespace, environment: MutableMapping[str, str], names: Sequence[str], counts: str
) -> FrontConfig:
    """Read the flags, and take the keys out of what other processes, routes and logs are shown.

    Args:
        args: What ``vllm serve``'s parser made of the command line and of a ``--config`` file; its keys are removed.
        environment: This process's; its key is removed.
        names: The ladder's factor sets.
        counts: The file of the shared counts.

    Raises:
        UsageError: with the flag, its value, unless it is a key, and what is allowed.
    """
    tls.check(args)
    if len(names) > CLASSES:
        raise UsageError(f"--factors: {len(names)} factor sets; from 1 to {CLASSES} can be served")
    from_environment = environment.pop(KEY_VARIABLE, "")
    given, source = args.api_key, "--api-key"
    if given is None:
        # As with vLLM, the flag comes before the variable, and an empty variable is none.
        given, source = [from_environment] if from_environment else [], KEY_VARIABLE
    digests = tuple(dict.fromkeys(check_key(source, key) for key in given))
    in_file = read_keys(args.api_key_file) if args.api_key_file is not None else ()
    if len(digests) + len(in_file) > MOST_KEYS:
        raise UsageError(f"--api-key-file: {args.api_key_file!r}: more than {MOST_KEYS} keys with those of {source}")
    metrics = (check_key("--metrics-key", args.metrics_key.strip()),) if args.metrics_key is not None else ()
    if args.metrics_key_file is not None:
        read_keys(args.metrics_key_file, "--metrics-key-file")
    args.api_key = args.metrics_key = None
    # Ours instead of vLLM's, which tls.py tells why.
    refresh_tls, args.enable_ssl_refresh = args.enable_ssl_refresh, False
    return FrontConfig(
        key_digests=digests,
        key_file=_absolute(args.api_key_file),
        metrics_digests=metrics,
        metrics_key_file=_absolute(args.metrics_key_file),
        max_body_bytes=args.max_body_bytes,
        max_held_body_bytes=args.max_held_body_bytes,
        body_timeout=args.body_timeout,
        max_prompt_tokens=args.max_prompt_tokens,
        max_queued_requests=_by_set("--max-queued-requests", args.max_queued_requests, names),
        max_queued_tokens=_by_set("--max-queued-tokens", args.max_queued_tokens, names),
        max_concurrent_per_key=args.max_concurrent_per_key,
        requests_per_minute_per_key=args.requests_per_minute_per_key,
        refresh_tls=refresh_tls,
        counts=counts,
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _by_set(flag: str, values: Sequence[tuple[str | None, int]] | None, names: Sequence[str]) -> dict[str | None, int]:
    limits: dict[str | None, int] = {}
    for name, limit in values or ():
        if name is not None and name not in names:
            raise UsageError(f"{flag}: {name}={limit}: the factor sets are {', '.join(names)}")
        if name in limits:
            raise UsageError(f"{flag}: {f'{name}=' if name else ''}{limit} is the second limit of the same prompts")
        limits[name] = limit
    return limits
