"""vLLM's CPU tier on CPUs: its own manager and scheduler side, and a worker of ours that copies the real blocks.

Stock's worker copies between a GPU and the host. This one copies as late as it may, so that whatever is not waited for is
seen to change underneath.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm import LLM
from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

# Bytes of a block of the tests' small models: keys and values of 2 layers with 2 heads of 32 float32 each, 32 tokens.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * 32


def host_tier(blocks: int = 1024, *, lag: int = 2, **extra: Any) -> KVTransferConfig:
    """An engine's ``kv_transfer_config`` for a host tier of ``blocks`` blocks.

    Args:
        blocks: The tier's size.
        lag: Steps for which a transfer is left undone, unless the engine waits for it.
        extra: More of ``kv_connector_extra_config``.
    """
    chosen = {
        "spec_name": "HostSpec",
        "spec_module_path": __name__,
        "cpu_bytes_to_use": blocks * BLOCK_BYTES,
        "lag": lag,
    }
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=chosen | extra
    )


class HostSpec(CPUOffloadingSpec):
    """Stock's spec with the copying worker."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._copying: LateWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._copying is None:
            assert self.config.worker_kv_bytes_per_block == BLOCK_BYTES
            lag = self.extra_config["lag"]
            self._copying = LateWorker(kv_caches, self.num_chunks, self.blocks_per_chunk, lag)
        return self._copying


@dataclass
class Job:
    """A transfer.

    Attributes:
        number: The connector's number for it.
        device: The engine's blocks.
        host: The tier's chunks.
        store: Whether it goes to the tier.
        left: Steps for which it is left undone.
    """

    number: int
    device: GPULoadStoreSpec
    host: BlockIDsLoadStoreSpec
    store: bool
    left: int


class LateWorker(OffloadingWorker):
    """Copies blocks between the engine's cache and the tier, in order, each job late."""

    def __init__(self, kv_caches: CanonicalKVCaches, chunks: int, blocks_per_chunk: int, lag: int) -> None:
        self._device = [each.tensor for each in kv_caches.tensors]
        shapes = [(chunks, blocks_per_chunk, tensor.shape[1]) for tensor in self._device]
        self.host = [torch.zeros(shape, dtype=torch.int8) for shape in shapes]
        self._refs = kv_caches.group_data_refs
        self._blocks_per_chunk = blocks_per_chunk
        self._lag = lag
        self._jobs: deque[Job] = deque()
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        assert isinstance(dst_spec, BlockIDsLoadStoreSpec)
        self._jobs.append(Job(job_id, src_spec, dst_spec, True, self._lag))
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        assert isinstance(src_spec, BlockIDsLoadStoreSpec)
        self._jobs.append(Job(job_id, dst_spec, src_spec, False, self._lag))
        return True

    def get_finished(self) -> list[TransferResult]:
        for job in self._jobs:
            job.left -= 1
        while self._jobs and self._jobs[0].left < 0:
            self._copy(self._jobs.popleft())
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        while any(job.number in job_ids for job in self._jobs):
            self._copy(self._jobs.popleft())

    def _copy(self, job: Job) -> None:
        moved = 0
        for tensor, block, chunk, place in self._pairs(job):
            device, host = self._device[tensor][block], self.host[tensor][chunk, place]
            if job.store:
                host.copy_(device)
            else:
                device.copy_(host)
            moved += len(host)
        self._done.append(TransferResult(job.number, True, moved, 1e-6))

    def _pairs(self, job: Job) -> Iterator[tuple[int, int, int, int]]:
        """Every (tensor, block, chunk, place in the chunk) of a transfer."""
        blocks, chunks = iter(np.asarray(job.device.block_ids).tolist()), iter(job.host.block_ids.tolist())
        groups = zip(job.device.group_sizes, job.device.block_indices, self._refs, strict=True)
        for size, first, refs in groups:
            chunk = -1
            for index in range(first, first + size):
                place = index % self._blocks_per_chunk
                if index == first or place == 0:
                    chunk = next(chunks)
                block = next(blocks)
                for ref in refs:
                    yield ref.tensor_idx, block, chunk, place


@dataclass
class Tally:
    """What an engine has computed and found in its tier since it was asked last.

    Attributes:
        computed: Tokens that were run through the model.
        external: Tokens that the tier supplied to new requests.
        resumed: Tokens that it supplied to preempted ones.
    """

    computed: int = 0
    external: int = 0
    resumed: int = 0

    @classmethod
    def of(cls, llm: LLM) -> "Tally":
        """Begin to count in an engine in this process, started with ``disable_log_stats=False``."""
        tally, scheduler = cls(), llm.llm_engine.engine_core.engine_core.scheduler
        schedule = scheduler.schedule

        def counted(*args: Any, **kwargs: Any) -> Any:
            stats = scheduler.connector_prefix_cache_stats
            before = stats.hits, stats.preempted_hits
            output = schedule(*args, **kwargs)
            tally.computed += output.total_num_scheduled_tokens
            tally.external += stats.hits - before[0]
            tally.resumed += stats.preempted_hits - before[1]
            return output

        scheduler.schedule = counted
        return tally

    def take(self) -> tuple[int, int, int]:
        """Computed, external and resumed tokens since the last call."""
        taken = self.computed, self.external, self.resumed
        self.computed = self.external = self.resumed = 0
        return taken
