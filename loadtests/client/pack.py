"""Prompts on disk: built once before a run, memory-mapped while it sends them."""

import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.pieces import Piece, Pieces
from ropeswitch.loadtests.client.plan import TRACE_BLOCK, Planned
from ropeswitch.loadtests.client.prompts import Composer
from ropeswitch.loadtests.client.turns import Conversation, Joints

FORMAT = 1
# Upper estimate of the bytes on disk per token, for texts and for lists of token ids.
TOKEN_BYTES = 8
MAKING, MAKING_SECONDS = ".making-", 86_400
Watch = Callable[[int], None]


@dataclass(frozen=True)
class Pack:
    """The prompts of a plan.

    Attributes:
        folder: Folder of the pack's files.
        places: Offset and size of each prompt in ``prompts.bin``, by index.
    """

    folder: Path
    places: Sequence[tuple[int, int]]
    _bytes: mmap.mmap

    def prompt(self, index: int) -> memoryview:
        """Return the field of the request's body with the prompt."""
        offset, size = self.places[index]
        return memoryview(self._bytes)[offset : offset + size]


def default_folder() -> Path:
    """Return the default cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropeswitch" / "loadtest"


def prepare(
    cache: Path,
    most_bytes: int,
    planned: Sequence[Planned],
    composer: Composer,
    joints: Joints,
    seed: int,
    watch: Watch,
) -> Pack:
    """Return the pack of a plan, built unless it is cached.

    Args:
        cache: Folder of all packs; the least recently used are removed when it grows over ``most_bytes``.
        most_bytes: See ``cache``.
        planned: The plan.
        composer: Assembles the prompts.
        joints: Token counts between the messages of conversations.
        seed: Random seed of the prompts' texts.
        watch: Called with the number of prompts built so far.

    Raises:
        UsageError: if the disk has too little space.
    """
    folder = cache / _name(planned, composer, seed)
    if (folder / "places.json").exists():
        os.utime(folder)
        watch(len(planned))
    else:
        cache.mkdir(parents=True, exist_ok=True)
        # Remove the rest of an interrupted removal.
        shutil.rmtree(folder, ignore_errors=True)
        needed = TOKEN_BYTES * sum(each.prompt_tokens for each in planned)
        free = shutil.disk_usage(cache).free
        if needed > free:
            raise UsageError(
                f"--cache {cache}: the prompts take up to {needed >> 20} MiB, but only {free >> 20} MiB are free: "
                "use another folder"
            )
        _forget(cache, most_bytes - needed)
        _make(folder, planned, composer, joints, seed, watch)
    places = json.loads((folder / "places.json").read_bytes())
    with (folder / "prompts.bin").open("rb") as file:
        return Pack(folder, places, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _name(planned: Sequence[Planned], composer: Composer, seed: int) -> str:
    """Hash all that prompts depend on: the plan, the text, its tokens and the seed."""
    digest = hashlib.sha256(json.dumps([FORMAT, seed, composer.chat, _content(composer.pieces)]).encode())
    for each in planned:
        digest.update(json.dumps(asdict(each)).encode())
    return digest.hexdigest()[:32]


def _content(pieces: Pieces) -> list[object]:
    every = (pieces.opening, *pieces.filler, pieces.pad, pieces.question, *pieces.keys.values())
    return [[piece.text, piece.ids] for piece in every]


def _forget(cache: Path, most_bytes: int) -> None:
    """Remove the least recently used packs until the rest takes at most ``most_bytes``."""
    for path in cache.glob(f"{MAKING}*"):
        # The process that built it was killed.
        if path.stat().st_mtime < time.time() - MAKING_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    packs = sorted(
        (path for path in cache.iterdir() if (path / "places.json").exists()), key=lambda path: path.stat().st_mtime
    )
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in packs}
    for path in packs:
        if sum(sizes.values()) <= most_bytes:
            break
        # A run that reads it keeps its mapping.
        shutil.rmtree(path)
        del sizes[path]


def _make(
    folder: Path, planned: Sequence[Planned], composer: Composer, joints: Joints, seed: int, watch: Watch
) -> None:
    made = Path(tempfile.mkdtemp(prefix=MAKING, dir=folder.parent))
    try:
        places: list[tuple[int, int]] = []
        offset = 0
        with (made / "prompts.bin").open("wb") as file:
            for prompt in _prompts(planned, composer, joints, seed):
                file.write(prompt)
                places.append((offset, len(prompt)))
                offset += len(prompt)
                watch(len(places))
        (made / "places.json").write_text(json.dumps(places))
        # Another process may have built the same pack in the meantime.
        if not folder.exists():
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _prompts(planned: Sequence[Planned], composer: Composer, joints: Joints, seed: int) -> Iterator[bytes]:
    keys = list(composer.pieces.keys)
    conversation: Conversation | None = None
    for each in planned:
        random = np.random.default_rng([seed, each.conversation, 1])
        if each.turn == 0:
            parts = composer.single(each.prompt_tokens, keys[each.key], random, _shared(each, composer, seed))
            conversation = Conversation(composer, joints, parts, keys[each.key], random)
            yield composer.body(parts, each.form)
        else:
            assert conversation is not None, "a conversation's first turn comes first"
            conversation.grow(each.prompt_tokens)
            yield conversation.body()


def _shared(each: Planned, composer: Composer, seed: int) -> list[Piece]:
    """Return the pieces that the prompt shares with others: its prefix, or its trace blocks."""
    if each.prefix is not None:
        return composer.filler(each.prefix_tokens, np.random.default_rng([seed, each.prefix, 2]))
    room = (each.prompt_tokens - composer.pieces.least) // TRACE_BLOCK
    blocks = each.blocks[: max(0, room)]
    return [
        piece for block in blocks for piece in composer.filler(TRACE_BLOCK, np.random.default_rng([seed, block, 3]))
    ]
