"""Flags for API keys, request limits and the access log, and the configs built from them for the API server processes."""

import argparse
import os
import ssl
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import flag, seconds, size, whole
from ropeswitch.server.front.limits.keys import MOST_KEYS, check_key, read_keys

# Import path by which vLLM finds the middleware.
MIDDLEWARE = "ropeswitch.server.front.front.Front"
KEY_VARIABLE = "VLLM_API_KEY"
STORE_VARIABLE = "VLLM_ENABLE_RESPONSES_API_STORE"
MEDIA_VARIABLE = "VLLM_MEDIA_CONNECTOR"
# Default limit on a client's tokens in flight, as a multiple of the tokens that may wait in the longest class.
TOKENS_PER_KEY = 4
BODY_SECONDS = 60.0
SEQUENCES = 2048
# Pixels of a request's images: 22 photographs of 12 megapixels, 768 MiB as RGB.
PIXELS = 1 << 28
# Words' bytes and token IDs that a request may list, times its sequences: a microsecond each on the event loop.
CONSTRAINTS = 1 << 19
GRAMMAR_SECONDS = 5.0
# An answer of 3,120 tokens with 20 alternatives; building it takes 0.5 s of the event loop.
LOGPROBS = 1 << 16
# Default limit of a body: bytes per token of the longest sequence, and a minimum. In JSON a token ID takes about seven
# bytes, and a token of text four to six, or up to six times as many if its characters are escaped.
BODY_BYTES_PER_TOKEN = 32
BODY_BYTES = 64 << 20
# Default limit on bodies in flight, as a multiple of the largest body.
HELD_BODIES = 8
# Default limits on the requests and tokens that wait in a length class: this many of its longest prompts, and a minimum in
# tokens. One client may have half of each: 128 prompts of 8,192 tokens with n = 8, and several times as many short ones.
QUEUED_REQUESTS = 16384
QUEUED_PROMPTS = 16
QUEUED_TOKENS = 1 << 24
_COUNT = flag(whole, 1, 2**53)


@dataclass(frozen=True)
class CostLimits:
    """Limits on what one request may start (``limits/cost.py``); the model's vocabulary and longest sequence in tokens."""

    sequences: int = SEQUENCES
    constraints: int = CONSTRAINTS
    grammar_seconds: float = GRAMMAR_SECONDS
    logprobs: int = LOGPROBS
    vocabulary: int = 0
    longest: int = 1 << 62


DEFAULT_COST = CostLimits()


@dataclass(frozen=True)
class FrontConfig:
    """Digests of the keys, and limits by factor set; every API server process gets it with vLLM's arguments."""

    key_digests: tuple[bytes, ...]  # of the API keys given on the command line or in the environment
    key_file: str | None
    metrics_digests: tuple[bytes, ...]
    metrics_key_file: str | None
    max_queued_requests: Mapping[str | None, int]  # by factor set; None covers the sets that are not named
    max_queued_tokens: Mapping[str | None, int]


def add(parser: Any) -> None:
    """Add the flags to ``vllm serve``'s parser."""
    group = parser.add_argument_group("Keys and limits", "API keys and request limits.")
    argument, path = group.add_argument, os.path.abspath
    for name, kind, metavar, text in (
        ("api-key-file", path, "FILE", "File of API keys, one per line; reloaded when it changes."),
        ("metrics-key", str, "KEY", "Key for /metrics, which then requires it or an API key."),
        ("metrics-key-file", path, "FILE", "File of keys for /metrics, reloaded when it changes."),
        ("max-body-bytes", size, "SIZE", "Maximum bytes of a request body, such as 16M."),
        ("max-held-body-bytes", size, "SIZE", "Maximum bytes of request bodies in flight, per API server process."),
        ("max-prompt-tokens", _COUNT, "N", "Maximum tokens of a prompt."),
    ):
        argument(f"--{name}", type=kind, metavar=metavar, help=text)
    for unit, what in (("requests", "requests"), ("tokens", "prompt tokens")):
        text = f"Maximum {what} waiting for a first token, per API server process; SET=N limits one factor set."
        argument(f"--max-queued-{unit}", type=of_class, nargs="+", metavar="[SET=]N", help=text)
    for name, default, what in (
        ("sequences-per-request", SEQUENCES, "sequences that a request may start: its prompts times n or beams"),
        ("constraints", CONSTRAINTS, "bytes of words, token IDs and other fields sent with each sequence of a request"),
        ("logprobs-per-request", LOGPROBS, "log-probabilities of an answer; a stream may have 16 times as many"),
        ("sequences-per-key", 4096, "sequences in flight per API key, or address without keys, per API server process"),
        ("tokens-per-key", None, "prompt tokens in flight, times n, per API key or address, per API server process"),
        ("connections", 4096, "open connections per API server process; one address may have 7/8 of them"),
        ("image-pixels", PIXELS, "pixels of a request's images"),
    ):
        argument(f"--max-{name}", type=_COUNT, default=default, metavar="N", help=f"Maximum {what}.")
    for name, most, text in (
        ("body-timeout", BODY_SECONDS, "to receive headers, and of a pause in receiving a body or sending a response"),
        ("max-grammar-seconds", GRAMMAR_SECONDS, "estimated to compile a request's JSON schema, regex or grammar"),
    ):
        argument(f"--{name}", type=seconds(3600.0), default=most, metavar="SECONDS", help=f"Maximum seconds {text}.")
    argument("--prefix-cache-scope", choices=("key", "server"), default="key", help="Who shares cached prompts.")
    argument("--allow-private-media", action="store_true", help="Fetch media from any address, and through proxies.")
    group = parser.add_argument_group("Access log", "One JSON line for each HTTP request.")
    group.add_argument(
        "--access-log",
        choices=("json", "off"),
        default="json",
        help="Write a JSON line for each HTTP request but probes and /metrics; off uses uvicorn's log.",
    )


def of_class(text: str) -> tuple[str | None, int]:
    """Parse ``N``, a limit for every length class, or ``SET=N``, a limit for one; raise argparse.ArgumentTypeError."""
    name, equals, number = text.rpartition("=")
    return name if equals else None, _COUNT(number)


def paths_left_out(args: argparse.Namespace) -> frozenset[str] | None:
    """Return the paths that our access log leaves out, and turn uvicorn's log off; None with ``--access-log off``."""
    if args.access_log == "off":
        return None
    args.disable_uvicorn_access_log = True
    return frozenset(path.strip() for path in (args.disable_access_log_for_endpoints or "").split(","))


def take(args: argparse.Namespace, environment: MutableMapping[str, str], names: Sequence[str]) -> FrontConfig:
    """Build the config, and remove the keys from arguments and environment, which other processes and logs can see.

    Raises:
        UsageError: naming the flag, its value unless it is a key, and what is allowed.
    """
    _check_tls(args)
    if args.metrics_key_file is not None:
        read_keys(args.metrics_key_file, "--metrics-key-file")
    from_environment = environment.pop(KEY_VARIABLE, "")
    given, source = args.api_key, "--api-key"
    if given is None:
        # As in vLLM, the flag overrides the variable, and an empty variable counts as unset.
        given, source = [from_environment] if from_environment else [], KEY_VARIABLE
    digests = tuple(dict.fromkeys(check_key(source, key) for key in given))
    in_file = read_keys(args.api_key_file) if args.api_key_file is not None else ()
    if len(digests) + len(in_file) > MOST_KEYS:
        raise UsageError(
            f"--api-key-file: {args.api_key_file!r}: more than {MOST_KEYS} keys, including those of {source}"
        )
    metrics = (check_key("--metrics-key", args.metrics_key.strip()),) if args.metrics_key is not None else ()
    args.api_key = args.metrics_key = None
    if environment.get(STORE_VARIABLE, "0") != "0" and (len(digests) > 1 or args.api_key_file is not None):
        raise UsageError(
            f"{STORE_VARIABLE}: every key of --api-key and --api-key-file could read the responses stored for another; "
            "leave the variable out, or serve one key (--api-key)"
        )
    if args.enable_prompt_tokens_details is None:
        args.enable_prompt_tokens_details = args.prefix_cache_scope == "key"
    if args.enable_ssl_refresh:
        # vLLM reloads with watchfiles, which without polling misses the second renewal of a mounted secret.
        environment.setdefault("WATCHFILES_FORCE_POLLING", "true")
    return FrontConfig(
        key_digests=digests,
        key_file=args.api_key_file,
        metrics_digests=metrics,
        metrics_key_file=args.metrics_key_file,
        max_queued_requests=_by_set("--max-queued-requests", args.max_queued_requests, names),
        max_queued_tokens=_by_set("--max-queued-tokens", args.max_queued_tokens, names),
    )


def _check_tls(args: argparse.Namespace) -> None:
    """Load the TLS files once; vLLM does it only after the model is loaded."""
    if not (args.ssl_certfile or args.ssl_keyfile):
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The empty password fails for an encrypted key, where OpenSSL would ask for one.
        context.load_cert_chain(args.ssl_certfile or "", args.ssl_keyfile, password="")
        if args.ssl_ca_certs:
            context.load_verify_locations(args.ssl_ca_certs)
    except (OSError, ValueError) as error:
        files = (("certfile", args.ssl_certfile), ("keyfile", args.ssl_keyfile), ("ca-certs", args.ssl_ca_certs))
        given = ", ".join(f"--ssl-{name} {value!r}" for name, value in files if value)
        raise UsageError(f"{given}: {error}. Use PEM files, and the certificate's own unencrypted key.") from error


def _by_set(flag: str, values: Sequence[tuple[str | None, int]] | None, names: Sequence[str]) -> dict[str | None, int]:
    for name, limit in values or ():
        if name is not None and name not in names:
            raise UsageError(f"{flag}: {name}={limit}: unknown factor set; use one of {', '.join(names)}")
    return dict(values or ())
