"""Op 6: where on this rank a step's new keys go, when each sequence's cache is dealt out over ranks.

Runs of ``interleave`` tokens go to the ranks in turn, so one block number means ``ranks * block_size`` tokens of a
sequence, of which each rank holds ``block_size`` in its own block of that number.
"""

import torch


def local_slots_reference(
    positions: list[int], blocks: list[list[int]], block_size: int, ranks: int, rank: int, interleave: int
) -> list[int]:
    """The op, token by token; ``blocks`` has each token's own block table, the rest as :func:`local_slots`."""
    slots = []
    for position, table in zip(positions, blocks, strict=True):
        # The owner counts its own runs before this one, and every run of the rest is someone else's.
        own = [p for p in range(position + 1) if p // interleave % ranks == rank]
        if not own or own[-1] != position:
            slots.append(-1)
        else:
            place = len(own) - 1
            slots.append(table[place // block_size] * block_size + place % block_size)
    return slots


def local_slots(
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
) -> torch.Tensor:
    """Slots of new keys in this rank's cache.

    Args:
        positions: ``[tokens]`` places in their sequences.
        requests: ``[tokens]`` rows of ``block_table``.
        block_table: ``[requests, blocks]`` block numbers, in the order of the sequence.
        block_size: Tokens per block on one rank, a multiple of ``interleave``.
        ranks: Over how many ranks a sequence is dealt out.
        rank: This one, from 0.
        interleave: Tokens that a rank gets in a row.

    Returns:
        ``[tokens]`` int64: ``block * block_size + offset``, or -1 for a token that another rank holds.
    """
    virtual = block_size * ranks
    blocks = block_table[requests, positions // virtual].long()
    offsets = positions % virtual
    place = offsets // (ranks * interleave) * interleave + offsets % interleave
    local = offsets // interleave % ranks == rank
    return torch.where(local, blocks * block_size + place, -1)
