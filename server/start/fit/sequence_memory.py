"""Memory that a rank of vLLM reserves for the sequences of ``--max-num-seqs``, before any request arrives.

Both model runners have room for every sequence at its maximum length: for its token IDs in host memory, and for the numbers
of its KV blocks in tables on the device.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

# Bytes of a token ID, of a position and of a block's number.
_INT = 4
# A row of a block table covers a multiple of this many tokens (`get_block_table_width`).
_ROW_TOKENS = 128


@dataclass(frozen=True)
class SequenceMemory:
    """Computes the memory that one rank reserves, as vLLM 0.32.0 does.

    Attributes:
        max_model_len: Tokens of the longest sequence.
        block_size: Tokens of a KV block.
        decode_context: Ranks that share the blocks of a sequence.
        v2: Whether the rank uses the V2 model runner, which stores token IDs in pinned memory.
        device: Kind of device; on ``cpu`` the tables are in host memory too.
        axes: Axes of M-RoPE, whose positions V2 stores in addition to the token IDs; 0 for other models.
    """

    max_model_len: int
    block_size: int = 16
    decode_context: int = 1
    v2: bool = True
    device: str = "cuda"
    axes: int = 0

    def host_bytes(self, sequences: int) -> int:
        """Return the bytes of host memory for ``sequences`` sequences: token IDs, and on a CPU the block tables."""
        array = sequences * self.max_model_len * _INT
        if self.v2:
            size = self._pinned(array) + self._pinned(array * self.axes)
        else:
            # One byte per ID for a flag, and the host's copy of the block table.
            size = array + array // _INT + self._pinned(self._table(sequences))
        return size + (self.device_bytes(sequences) if self.device == "cpu" else 0)

    def device_bytes(self, sequences: int) -> int:
        """Return the bytes of device memory for block tables: one, and in V2 a second one for the model's inputs."""
        return self._table(sequences) * (2 if self.v2 else 1)

    def _table(self, sequences: int) -> int:
        blocks = -(-self.max_model_len // (self.block_size * self.decode_context))
        row = _ROW_TOKENS // gcd(_ROW_TOKENS, self.block_size)
        return sequences * -(-blocks // row) * row * _INT

    def _pinned(self, size: int) -> int:
        """Return the bytes reserved: PyTorch rounds pinned memory up to a power of two (``CachingHostAllocator``)."""
        return size if self.device == "cpu" or size == 0 else 1 << (size - 1).bit_length()


def most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number of sequences up to ``limit`` that fits; 0 if not even one does."""
    return bisect_left(range(1, limit + 1), True, key=lambda sequences: not fits(sequences))


def power_of_two(limit: int) -> int:
    """Return the largest power of two up to ``limit``, which is at least 1."""
    return 1 << (limit.bit_length() - 1)
