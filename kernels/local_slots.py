"""Op 6: map a step's new keys to slots of this rank's cache, when each sequence's cache is sharded over ranks.

Ranks take runs of ``interleave`` tokens in turn, so one block number covers ``ranks * block_size`` tokens of a sequence.
Each rank holds ``block_size`` of them in its own block of that number.
"""

import torch


def local_slots(
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
) -> torch.Tensor:
    """Return the slots of new keys in this rank's cache.

    Args:
        positions: ``[tokens]`` positions in their sequences.
        requests: ``[tokens]`` rows of ``block_table``.
        block_table: ``[requests, blocks]`` block numbers, in the order of the sequence.
        block_size: Tokens per block on one rank, a multiple of ``interleave``.
        ranks: Number of ranks that a sequence is sharded over.
        rank: This rank, from 0.
        interleave: Consecutive tokens per rank.

    Returns:
        ``[tokens]`` int64: ``block * block_size + offset``, or -1 for a token that another rank holds.
    """
    virtual = block_size * ranks
    blocks = block_table[requests, positions // virtual].long()
    offsets = positions % virtual
    place = offsets // (ranks * interleave) * interleave + offsets % interleave
    local = offsets // interleave % ranks == rank
    return torch.where(local, blocks * block_size + place, -1)
