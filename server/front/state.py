"""Builds the front's parts in an API server process, once its engine is known."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.front import routes
from ropeswitch.server.front.flags import (
    BODY_BYTES,
    BODY_BYTES_PER_TOKEN,
    HELD_BODIES,
    QUEUED_PROMPTS,
    QUEUED_REQUESTS,
    QUEUED_TOKENS,
    FrontConfig,
)
from ropeswitch.server.front.limits.keys import EVERYONE, KeyLimits, KeyRing, bearer
from ropeswitch.server.front.limits.queue_limits import Admission, LengthClass, Waits
from ropeswitch.server.front.refusal import NO_KEY, WRONG_KEY, Refusal, RefusedError


class HeldBodies:
    """Memory held by request bodies in flight; one per API server process, used only on its event loop.

    Args:
        limit: Maximum bytes (``--max-held-body-bytes``).

    Attributes:
        bytes: Bytes held now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0


@dataclass(frozen=True)
class FrontState:
    """Keys and limits that the front's middleware enforces, in one API server process.

    Attributes:
        keys: The API keys.
        metrics_keys: The keys for ``/metrics`` only; without any, ``/metrics`` is open.
        key_limits: The limits of each key.
        queue: Admits prompts to the engine, within the limits of each length class.
        max_body_bytes: Maximum bytes of a body.
        held_bodies: Memory held by request bodies in flight.
        body_timeout: Longest pause between two parts of a body, in seconds.
        max_sequences: Maximum sequences that one body may start.
        max_headers: Maximum number of headers.
    """

    keys: KeyRing
    metrics_keys: KeyRing
    key_limits: KeyLimits
    queue: Admission
    max_body_bytes: int
    held_bodies: HeldBodies
    body_timeout: float
    max_sequences: int
    max_headers: int

    def identify(self, scope: Scope, path: str) -> bytes:
        """Return the digest of a request's key, or :data:`EVERYONE`.

        Raises:
            RefusedError: for a missing or wrong key.
        """
        metrics = routes.is_metrics(path)
        # The metrics are answered to any method.
        if (_is_preflight(scope) and not metrics) or routes.is_open(path):
            return EVERYONE
        needs_key = self.metrics_keys.needed if metrics else self.keys.needed
        if not needs_key:
            return EVERYONE
        token = _token(scope, path)
        if token is None:
            raise RefusedError(NO_KEY)
        if metrics and self.metrics_keys.match(token) is not None:
            return EVERYONE
        if (key := self.keys.match(token)) is None:
            raise RefusedError(WRONG_KEY)
        return key

    def count(self, key: bytes) -> None:
        """Count a request as in flight; ``key_limits.give_back`` must follow.

        Raises:
            RefusedError: for a request beyond the key's limits.
        """
        if (refusal := self.key_limits.take(key)) is not None:
            raise RefusedError(refusal)


def _is_preflight(scope: Scope) -> bool:
    """Whether a request is a browser's CORS preflight, which carries no key; vLLM's CORS middleware answers it."""
    wanted = {b"origin", b"access-control-request-method"}
    return scope.get("method") == "OPTIONS" and wanted <= {name for name, _ in scope["headers"]}


def _token(scope: Scope, path: str) -> bytes | None:
    """Return the key in a request's headers: a bearer token, or ``x-api-key`` on routes for Anthropic's clients."""
    headers = scope["headers"]
    token = next((bearer(value) for name, value in headers if name == b"authorization"), None)
    if token is None and routes.is_anthropic(path):
        token = next((value.strip() for name, value in headers if name == b"x-api-key"), None)
    return token or None


def build(
    config: FrontConfig,
    ladder: FactorLadder,
    max_model_len: int,
    waits: Waits,
    make_error: Callable[[Refusal], RefusedError],
) -> FrontState:
    """Build the middleware's keys and limits.

    Args:
        config: Values of the flags.
        ladder: The engine's ladder.
        max_model_len: Maximum tokens of a sequence.
        waits: See :data:`~ropeswitch.server.front.limits.queue_limits.Waits`.
        make_error: See :class:`~ropeswitch.server.front.limits.queue_limits.Admission`.

    Raises:
        UsageError: when a key file has become unreadable since the start of the command.
    """
    max_body_bytes = config.max_body_bytes or max(BODY_BYTES, BODY_BYTES_PER_TOKEN * max_model_len)
    return FrontState(
        keys=KeyRing(config.key_digests, config.key_file),
        metrics_keys=KeyRing(config.metrics_digests, config.metrics_key_file, "--metrics-key-file"),
        key_limits=KeyLimits(config.max_concurrent_per_key),
        queue=Admission(length_classes(config, ladder, max_model_len), waits, config.max_prompt_tokens, make_error),
        max_body_bytes=max_body_bytes,
        held_bodies=HeldBodies(config.max_held_body_bytes or HELD_BODIES * max_body_bytes),
        body_timeout=config.body_timeout,
        max_sequences=config.max_sequences_per_request,
        max_headers=config.max_headers,
    )


def length_classes(config: FrontConfig, ladder: FactorLadder, max_model_len: int) -> list[LengthClass]:
    """Return one class per factor set, with the limits given for that set or for all sets, or else the defaults."""
    requests, tokens = config.max_queued_requests, config.max_queued_tokens
    return [
        LengthClass(
            name=each.name,
            max_requests=requests.get(each.name) or requests.get(None) or QUEUED_REQUESTS,
            max_tokens=tokens.get(each.name)
            or tokens.get(None)
            or max(QUEUED_TOKENS, QUEUED_PROMPTS * min(each.max_length, max_model_len)),
        )
        for each in ladder.sets
    ]
