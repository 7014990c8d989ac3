"""Prompts on disk: built before a run, memory-mapped while it sends them, and gone with the process."""

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.pieces import Piece
from ropeswitch.loadtests.client.plan import TRACE_BLOCK, Planned
from ropeswitch.loadtests.client.prompts import Composer
from ropeswitch.loadtests.client.turns import Conversation, Joints

# Upper estimate of the bytes on disk per token, for texts and for lists of token ids.
TOKEN_BYTES = 8


@dataclass(frozen=True)
class Pack:
    """The prompts of a plan, on disk while an object refers to them.

    Attributes:
        places: Offset and size of each prompt, by index.
    """

    places: Sequence[tuple[int, int]]
    _bytes: mmap.mmap

    def prompt(self, index: int) -> memoryview:
        """Return the field of the request's body with the prompt."""
        offset, size = self.places[index]
        return memoryview(self._bytes)[offset : offset + size]


def build(
    folder: Path, planned: Sequence[Planned], composer: Composer, joints: Joints, seed: int, watch: Callable[[], object]
) -> Pack:
    """Build the pack of a plan.

    Args:
        folder: Folder for its file, which has no name and disappears with the pack.
        planned: The plan.
        composer: Assembles the prompts.
        joints: Token counts between the messages of conversations.
        seed: Random seed of the prompts' texts.
        watch: Called after each prompt.

    Raises:
        UsageError: if the disk has too little space.
    """
    needed = TOKEN_BYTES * sum(each.prompt_tokens for each in planned)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"--out {folder}: the prompts take up to {needed >> 20} MiB, but only {free >> 20} MiB are free: "
            "use another folder"
        )
    places: list[tuple[int, int]] = []
    offset = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        for prompt in _prompts(planned, composer, joints, seed):
            file.write(prompt)
            places.append((offset, len(prompt)))
            offset += len(prompt)
            watch()
        file.flush()
        return Pack(places, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


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
