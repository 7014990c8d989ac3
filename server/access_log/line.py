"""The line of one HTTP request: its fields, from what was noted while it was in hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.types import Scope

from ropeswitch.server.access_log.record import RequestRecord
from ropeswitch.server.length_metrics.bands import Bands
from ropeswitch.server.length_metrics.fates import rejection_reason

# From the worst: a request whose sequences ended differently has the first of these that one of them has.
_OUTCOMES = ("error", "disconnect", "abort", "length", "repetition", "stop")
# What was neither refused nor given to an engine.
ANSWERED = "answered"
_ID_LENGTH = 256


@dataclass
class Exchange:
    """How one HTTP request went.

    Attributes:
        came: When it came, in seconds since 1970.
        status: The status of its answer, None where none was started.
        whole: Whether the answer was given to its end.
        left: Whether the client left before that.
        stopped: Whether the server was stopped meanwhile.
        seconds: How long it took.
    """

    came: float
    status: int | None = None
    whole: bool = False
    left: bool = False
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Names:
    """What the fields of prompts are filled with.

    Attributes:
        bands: The length bands.
        sets: The names of the factor sets.
        model: The name that the model is served under.
        measured: Whether sequences are watched, which they are not with ``--disable-log-stats``.
    """

    bands: Bands
    sets: tuple[str, ...]
    model: str
    measured: bool = True


def fields(scope: Scope, path: str, exchange: Exchange, record: RequestRecord, names: Names | None) -> dict[str, Any]:
    """The fields of a line, in order.

    Args:
        scope: The request's.
        path: Its path, without what stands behind a ``?``, where people put keys.
        exchange: How it went.
        record: What was noted of it.
        names: None where the request is not one that runs prompts, and has no fields of theirs.
    """
    came = datetime.fromtimestamp(exchange.came, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    client = scope.get("client")
    outcome, reason = _outcome(exchange, record)
    line = {
        "time": came,
        "method": scope["method"],
        "path": path,
        "status": exchange.status,
        "client": f"{client[0]}:{client[1]}" if client else None,
        "request_id": _request_id(scope),
    }
    if names is not None:
        line |= _prompt_fields(record, names)
    line |= {"seconds": round(exchange.seconds, 6), "outcome": outcome, "reason": reason}
    if record.prompts:
        line["prompts"] = list(record.prompts.values())
    return line


def _prompt_fields(record: RequestRecord, names: Names) -> dict[str, Any]:
    tracks = record.sequences
    # Of several prompts the longest tells the band and the set.
    longest = max(tracks, key=lambda track: track.prompt, default=None)
    prompts = {track.request_id: track.prompt for track in tracks}
    waited = [track.waited for track in tracks if track.waited is not None]
    if longest is None:
        model, length = None, record.refused_tokens
        band = None if length is None else names.bands.name(length)
    else:
        model, length = longest.adapter or names.model, sum(prompts.values())
        band = names.bands.names[longest.first[0]]
    values = {
        "model": model,
        "prompt_tokens": length,
        "generated_tokens": sum(track.stats.num_generation_tokens for track in tracks),
        "length_band": band,
        "factor_set": None if longest is None else names.sets[longest.first[1]],
        "later_factor_sets": [names.sets[index] for track in tracks for index in track.later],
        "switches": sum(len(track.later) for track in tracks),
        "recomputed_tokens": sum(track.recomputed for track in tracks),
        "seconds_to_first_token": round(min(waited), 6) if waited else None,
    }
    return values if names.measured else dict.fromkeys(values)


def _outcome(exchange: Exchange, record: RequestRecord) -> tuple[str, str | None]:
    """What became of a request, and why it was refused, if it was."""
    status = exchange.status
    if record.reason is not None:
        return "rejected", record.reason
    if status is None and not exchange.stopped:
        return "disconnect", None
    if status is not None and status >= 400 and (status < 500 or not record.sequences):
        reason = rejection_reason(status)
        return ("error", None) if reason is None else ("rejected", reason)
    unknown = "disconnect" if exchange.left else "abort" if exchange.stopped else None
    ended = {track.outcome or unknown for track in record.sequences} if record.sequences else {unknown}
    if status is not None and status >= 500 and "abort" not in ended:
        return "error", None
    return next((outcome for outcome in _OUTCOMES if outcome in ended), ANSWERED), None


def _request_id(scope: Scope) -> str | None:
    """The ID that the answer has, or that the client gave its request; cut to a length that nobody needs to exceed."""
    state: Mapping[str, Any] = scope.get("state") or {}
    if (metadata := state.get("request_metadata")) is not None:
        return str(metadata.request_id)[:_ID_LENGTH]
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
    return None if given is None else given.decode("latin-1")[:_ID_LENGTH]
