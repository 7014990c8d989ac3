"""``POST /v1/rope/ladder`` and ``DELETE /v1/rope/ladder/{name}``: replace, add and drop ladders of the running engine."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.strict_json import object_from_json
from ropeswitch.server import vllm_adapter
from ropeswitch.server.ladder_updates import LadderUpdates, UpdateError
from ropeswitch.server.ladders import qualified
from ropeswitch.server.parts import ServerParts

# Maximum bytes of a ladder: twice the size of 32 sets of 1,024 factors of 64 bytes each.
MOST_BYTES = 4 << 20

router = APIRouter()


class ServedLadder(BaseModel):
    """A ladder that is now served."""

    name: str | None = Field(description="The ladder's name; null for the ladder of requests that name none.")
    sets: list[str] = Field(description="The names of its sets in headers, metrics and logs, in order of length.")
    recomputed: int = Field(description="Requests that continue in it, recomputed if their set changed.")


class DroppedLadder(BaseModel):
    """A named ladder that is no longer served."""

    name: str


@router.post("/v1/rope/ladder", response_model=ServedLadder)
async def serve_ladder(request: Request) -> ServedLadder:
    """Serve a ladder, given by the fields of a factor file and optional `name` and `running` (`finish` or `recompute`)."""
    updates = _updates(request)
    text = await request.body()
    if len(text) > MOST_BYTES:
        raise HTTPException(413, f"The body has {len(text)} bytes; at most {MOST_BYTES} are allowed.")
    try:
        update = updates.read(object_from_json(text.decode("utf-8")))
        moved = await updates.serve(update)
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"The body is not UTF-8 text: byte {error.start}.") from error
    except FactorError as error:
        raise vllm_adapter.validation_error(str(error), _field(str(error))) from error
    except UpdateError as error:
        status = 409 if error.full else 503
        raise HTTPException(status, f"{error} The ladders are unchanged.") from error
    names = [qualified(update.name, each) for each in update.ladder.names]
    return ServedLadder(name=update.name or None, sets=names, recomputed=moved)


@router.delete("/v1/rope/ladder/{name}", response_model=DroppedLadder)
async def drop_ladder(name: str, request: Request) -> DroppedLadder:
    """Stop serving a named ladder; its requests finish."""
    if not await _updates(request).drop(name):
        raise HTTPException(404, f"The ladder `{name}` does not exist; GET /v1/rope lists the ladders.")
    return DroppedLadder(name=name)


def _updates(request: Request) -> LadderUpdates:
    parts: ServerParts = request.app.state.ropeswitch
    if parts.ladder_updates is None:
        raise HTTPException(
            403, "Ladder updates are disabled. Start the server with --allow-ladder-updates to enable them."
        )
    return parts.ladder_updates


def _field(message: str) -> Any:
    """Return the field that a message begins with, or None."""
    field, separator, _ = message.partition(": ")
    return field.strip("'") if separator and " " not in field else None
