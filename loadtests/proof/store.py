"""Finished measurements: one file of JSON lines for each server, one line for each measurement."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

PERPLEXITY, PASSKEY, CHAT = "perplexity", "passkey", "chat"


@dataclass(frozen=True)
class Item:
    """One unit of measurement, the same for every server: a document, pass key or chat; chats have length 0."""

    task: str
    length: int
    name: str


@dataclass(frozen=True)
class Measurement:
    """One item's result: scored tokens and the sum of their losses in nats, or a greedy reply.

    ``found`` says whether the reply has the pass key.
    """

    item: Item
    tokens: int = 0
    nll: float = 0.0
    reply: str = ""
    found: bool | None = None


def read(folder: Path, arm: str) -> dict[Item, Measurement]:
    """Return a server's measurements by item; empty if it has no file. An incomplete last line is ignored."""
    path = folder / f"{arm}.jsonl"
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    found = [Measurement(**{**content, "item": Item(**content["item"])}) for content in map(json.loads, lines)]
    return {each.item: each for each in found}


def append(folder: Path, arm: str, measurement: Measurement) -> None:
    """Append a measurement to a server's file, after cutting off an incomplete last line."""
    path = folder / f"{arm}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        stream.seek(0)
        content = stream.read()
        stream.truncate(content.rfind(b"\n") + 1)
        stream.write(json.dumps(asdict(measurement)).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
