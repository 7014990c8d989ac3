"""vLLM's native offloading for the engine of ``hash_engine.py``: its own manager and both its sides, over a tier of keys."""

from dataclasses import dataclass

from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from tests.exactness.host_tier import LateTransfers, offloading

# What upstream rounds a chunk of the tier up to, in bytes.
LEAST_CHUNK = 4096


class HashSpec(CPUOffloadingSpec):
    """Stock's spec; its worker is made by :class:`HashTier`."""


class KeyTransfers(LateTransfers):
    """Copies the keys of a shadow cache, by (block, place in the block), to a tier and back."""

    def __init__(self, slots: dict[tuple[int, int], int], block_size: int, blocks_per_chunk: int, lag: int) -> None:
        super().__init__(blocks_per_chunk, lag)
        self._slots, self._block_size = slots, block_size
        self._host: dict[tuple[int, int], list[int | None]] = {}

    def copy(self, store: bool, group: int, block: int, chunk: int, place: int) -> None:
        slots = [(block, i) for i in range(self._block_size)]
        if store:
            self._host[chunk, place] = [self._slots.get(slot) for slot in slots]
            return
        for slot, key in zip(slots, self._host[chunk, place], strict=True):
            assert key is not None
            self._slots[slot] = key

    def spoil(self, group: int, block: int) -> None:
        raise AssertionError("loses nothing")


@dataclass(frozen=True)
class HashTier:
    """A tier."""

    chunks: int  # Its size.
    blocks_per_chunk: int  # Blocks of the engine in a chunk.
    lag: int  # Steps for which a transfer is left undone.
    prompt_only: bool  # Whether answers are not stored.

    def config(self) -> KVTransferConfig:
        return offloading(
            spec_name="HashSpec", spec_module_path=__name__, cpu_bytes_to_use=self.chunks * LEAST_CHUNK,
            blocks_per_chunk=self.blocks_per_chunk, offload_prompt_only=self.prompt_only,
        )  # fmt: skip

    def transfers(
        self, config: VllmConfig, kv_cache_config: KVCacheConfig, slots: dict[tuple[int, int], int]
    ) -> OffloadingConnectorWorker:
        """The worker's side of the connector, over the shadow cache ``slots``."""
        offloading = build_offloading_config(config, kv_cache_config)
        worker = OffloadingConnectorWorker(HashSpec(offloading), config, kv_cache_config)
        worker.worker = KeyTransfers(slots, offloading.groups[0].tokens_per_block, self.blocks_per_chunk, self.lag)
        return worker
