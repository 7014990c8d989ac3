"""The access log of one API server process: JSON lines on standard output.

A line is written when its request ends; its fields come from the request's context.
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.types import Scope

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.front.context import RequestContext
from ropeswitch.server.front.limits.keys import key_id
from ropeswitch.server.front.state import LONGEST_ID, REQUEST_ID, is_below, is_metrics
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.fates import PATHS, rejection_reason

# Worst first: the outcome of a request is the worst of its sequences'.
_OUTCOMES = ("error", "disconnect", "abort", "length", "repetition", "stop")


def _outcome(context: RequestContext) -> tuple[str, str | None]:
    """Return a request's outcome, and the reason if it was rejected."""
    status = context.sent.status
    if context.refusal is not None:
        return "rejected", context.refusal.reason
    if status is None and not context.sent.stopped:
        return "disconnect", None
    if status is not None and status >= 400 and (status < 500 or not context.entered.sequences):
        reason = rejection_reason(status)
        return ("error", None) if reason is None else ("rejected", reason)
    unknown = "disconnect" if context.sent.left else "abort" if context.sent.stopped else None
    ended = (
        {track.outcome or unknown for track in context.entered.sequences} if context.entered.sequences else {unknown}
    )
    if status is not None and status >= 500 and "abort" not in ended:
        return "error", None
    return next((outcome for outcome in _OUTCOMES if outcome in ended), "answered"), None


def _request_id(scope: Scope) -> str | None:
    """Return the ID of the response, or else the client's ``x-request-id``, cut to 256 characters."""
    state: Mapping[str, Any] = scope.get("state") or {}
    if (metadata := state.get("request_metadata")) is not None:
        return str(metadata.request_id)[:LONGEST_ID]
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), None)
    return None if given is None else given.decode("latin-1")[:LONGEST_ID]


class AccessLog:
    """Logs finished requests; see the module.

    Args:
        left_out: Paths that are not logged, in addition to probes and ``/metrics``.
        ladder: For the names of sets and length bands.
        model: The name that the model is served under.
        measured: Whether sequences are tracked; False with ``--disable-log-stats``.
    """

    def __init__(self, left_out: frozenset[str], ladder: FactorLadder, model: str, measured: bool) -> None:
        self._left_out = left_out
        self._bands, self._sets, self._model, self._measured = Bands(ladder), ladder.names, model, measured

    def leaves_out(self, path: str) -> bool:
        """Whether requests to a path are not logged."""
        return path in self._left_out or is_below(path, "/health") or is_metrics(path)

    def write(self, scope: Scope, path: str, context: RequestContext, seconds: float) -> None:
        """Log a finished request that took ``seconds``; ``path`` has no query, which may hold keys."""
        came = datetime.fromtimestamp(context.came, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
        client = scope.get("client")
        outcome, reason = _outcome(context)
        line = {
            "time": came,
            "method": scope["method"],
            "path": path[:256],
            "status": context.sent.status,
            "client": f"{client[0]}:{client[1]}" if client else None,
            "key": None if context.key is None else key_id(context.key),
            "request_id": _request_id(scope),
        }
        if context.entered.sequences or (scope["method"] == "POST" and path in PATHS):
            line |= self._prompt_fields(context)
        line |= {"seconds": round(seconds, 6), "outcome": outcome, "reason": reason}
        # In one write, because several processes share the pipe, which the command reads without pause (outlet.py).
        os.write(1, json.dumps(line).encode() + b"\n")

    def _prompt_fields(self, context: RequestContext) -> dict[str, Any]:
        tracks = context.entered.sequences
        # Of several prompts, the longest decides the band and the set.
        longest = max(tracks, key=lambda track: track.prompt, default=None)
        prompts = {track.request_id: track.prompt for track in tracks}
        waited = [track.waited for track in tracks if track.waited is not None]
        if longest is None:
            model, length = None, context.refused_tokens
            band = None if length is None else self._bands.name(length)
        else:
            model, length = longest.adapter or self._model, sum(prompts.values())
            band = self._bands.names[longest.first[0]]
        values = {
            "model": model,
            "prompt_tokens": length,
            "generated_tokens": sum(track.stats.num_generation_tokens for track in tracks),
            "length_band": band,
            "factor_set": None if longest is None else self._sets[longest.first[1]],
            "ladder_policy": None if longest is None else longest.placement.chosen_by,
            "later_factor_sets": [self._sets[index] for track in tracks for index in track.later],
            "switches": sum(len(track.later) for track in tracks),
            "recomputed_tokens": sum(track.recomputed for track in tracks),
            "seconds_to_first_token": round(min(waited), 6) if waited else None,
        }
        return values if self._measured else dict.fromkeys(values)
