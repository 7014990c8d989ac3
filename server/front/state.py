"""Who may send a request, by path, key and headers; and the front's parts in an API server process."""

import uuid
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.front.flags import (
    BODY_BYTES,
    BODY_BYTES_PER_TOKEN,
    HELD_BODIES,
    QUEUED_PROMPTS,
    QUEUED_REQUESTS,
    QUEUED_TOKENS,
    TOKENS_PER_KEY,
    CostLimits,
    FrontConfig,
)
from ropeswitch.server.front.limits.keys import KeyRing, Shares, Turns, bearer, client_at
from ropeswitch.server.front.limits.queue_limits import Admission, LengthClass, Waits
from ropeswitch.server.front.refusal import NO_KEY, WRONG_KEY, Refusal, RefusedError, too_many_headers

# Header of a request's ID; vLLM adds it to the responses of its handlers.
REQUEST_ID = b"x-request-id"
# Maximum bytes of a client's x-request-id: vLLM repeats it in every chunk of a stream and every message to the engine.
LONGEST_ID = 256


def route_path(scope: Scope) -> str:
    """Return the path that the app's router matches: without ``--root-path``, removed exactly as ``starlette`` does.

    A rule on any other path could be bypassed.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest.startswith("/") else path


def is_below(path: str, top: str) -> bool:
    """Whether a path is ``top`` or below it."""
    return path == top or path.startswith(f"{top}/")


def is_open(path: str) -> bool:
    """Whether a path needs no key: ``/health*`` and the files of the status page (its data needs one)."""
    return path == "/" or is_below(path, "/health") or is_below(path, "/ui")


def is_metrics(path: str) -> bool:
    """Whether vLLM answers a path with the metrics; its mount matches every path that starts so, such as /metricsx."""
    return path.startswith("/metrics")


def is_anthropic(path: str) -> bool:
    """Whether a path is answered in the shape of Anthropic's API, errors included."""
    return is_below(path, "/v1/messages")


def identify_request(scope: Scope) -> bytes | None:
    """Return a request's ID, a new one if it has none; vLLM copies it to the response's header and the answer's ``id``.

    Returns None if it is longer than :data:`LONGEST_ID`, so that the refusal does not repeat it.
    """
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), None)
    if given is None:
        given = uuid.uuid4().hex.encode()
        scope["headers"] = [*scope["headers"], (REQUEST_ID, given)]
    return bytes(given) if len(given) <= LONGEST_ID else None


def address_digest(scope: Scope) -> bytes:
    """Return what stands for a request's client wherever clients share, unless it has a key."""
    return client_at((scope.get("client") or (None,))[0])


@dataclass(frozen=True)
class FrontState:
    """Keys and limits that the front's middleware enforces, in one API server process."""

    keys: KeyRing
    metrics_keys: KeyRing  # without any, /metrics is open
    queue: Admission
    max_body_bytes: int
    held_bodies: Shares  # bytes of long bodies in flight
    connections: Shares
    turns: Turns
    body_timeout: float  # longest pause between two parts of a body, in seconds
    cost_limits: CostLimits
    max_headers: int

    def identify(self, scope: Scope, path: str) -> bytes | None:
        """Return the digest of a request's key, None if it needs none; raise RefusedError for a missing or wrong key."""
        metrics, headers = is_metrics(path), scope["headers"]
        # A browser's CORS preflight carries no key; vLLM's CORS middleware answers it. The metrics answer any method.
        preflight = scope.get("method") == "OPTIONS" and not metrics
        preflight = preflight and {b"origin", b"access-control-request-method"} <= {name for name, _ in headers}
        needs_key = self.metrics_keys.needed if metrics else self.keys.needed
        if preflight or is_open(path) or not needs_key:
            return None
        token = next((bearer(value) for name, value in headers if name == b"authorization"), None)
        if token is None and is_anthropic(path):
            token = next((value.strip() for name, value in headers if name == b"x-api-key"), None)
        if not token:
            raise RefusedError(NO_KEY)
        if metrics and self.metrics_keys.match(token) is not None:
            return None
        if (key := self.keys.match(token)) is None:
            raise RefusedError(WRONG_KEY)
        return key

    def check_headers(self, scope: Scope) -> None:
        """Raise RefusedError for too many headers, or a request ID that is too long."""
        if len(scope["headers"]) > self.max_headers:
            raise RefusedError(too_many_headers(self.max_headers))
        for name, value in scope["headers"]:
            if name == REQUEST_ID and len(value) > LONGEST_ID:
                message = f"The header 'x-request-id' has more than {LONGEST_ID} bytes, this server's limit."
                raise RefusedError(Refusal("invalid", 400, None, message, param="x-request-id"))


def build(
    args: Namespace,
    ladder: FactorLadder,
    max_model_len: int,
    waits: Waits,
    make_error: Callable[[Refusal], RefusedError],
    vocabulary: int = 0,
) -> FrontState:
    """Build the middleware's keys and limits from the command's flags, with their ``FrontConfig`` in ``ropeswitch_front``.

    Raises UsageError when a key file has become unreadable since the start of the command.
    """
    # One class per factor set, with the limits given for that set or for all sets, or else the defaults.
    config: FrontConfig = args.ropeswitch_front
    requests, tokens = config.max_queued_requests, config.max_queued_tokens
    classes = [
        LengthClass(
            name=each.name,
            max_requests=requests.get(each.name) or requests.get(None) or QUEUED_REQUESTS,
            max_tokens=tokens.get(each.name)
            or tokens.get(None)
            or max(QUEUED_TOKENS, QUEUED_PROMPTS * min(each.max_length, max_model_len)),
        )
        for each in ladder.sets
    ]
    max_body_bytes = args.max_body_bytes or max(BODY_BYTES, BODY_BYTES_PER_TOKEN * max_model_len)
    held_bodies = Shares("--max-held-body-bytes", args.max_held_body_bytes or HELD_BODIES * max_body_bytes, weight=1)
    most_tokens = args.max_tokens_per_key or TOKENS_PER_KEY * max(QUEUED_TOKENS, QUEUED_PROMPTS * max_model_len)
    return FrontState(
        keys=KeyRing(config.key_digests, config.key_file),
        metrics_keys=KeyRing(config.metrics_digests, config.metrics_key_file, "--metrics-key-file"),
        queue=Admission(classes, args.max_sequences_per_key, most_tokens, waits, args.max_prompt_tokens, make_error),
        max_body_bytes=min(max_body_bytes, held_bodies.most),
        held_bodies=held_bodies,
        # A gateway is one address, so one alone may have 7/8 of them.
        connections=Shares("--max-connections", args.max_connections, weight=7),
        turns=Turns(),
        body_timeout=args.body_timeout,
        cost_limits=CostLimits(
            args.max_sequences_per_request,
            args.max_constraints,
            args.max_grammar_seconds,
            args.max_logprobs_per_request,
            vocabulary,
            max_model_len,
        ),
        max_headers=args.h11_max_header_count,
    )
