"""vLLM's CPU tier on CPUs: its own manager and scheduler side, and a worker of ours that copies the real blocks.

Stock's worker copies between a GPU and the host. This one copies as late as it may, so that whatever is not waited for is
seen to change underneath.
"""

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm import LLM
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

# Bytes of a block of the tests' small models: keys and values of 2 layers with 2 heads of 32 float32 each, 32 tokens.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * 32


def offloading(**extra: Any) -> KVTransferConfig:
    return KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra)


def host_tier(blocks: int = 1024, *, lag: int = 2, **extra: Any) -> KVTransferConfig:
    """An engine's ``kv_transfer_config`` for a host tier of ``blocks`` blocks.

    For ``lag`` steps a transfer is left undone, unless the engine waits for it; ``extra`` is more of the configuration.
    """
    # Answers are stored too, not prompts alone.
    extra = {"offload_prompt_only": False} | extra
    extra = {"spec_name": "HostSpec", "cpu_bytes_to_use": blocks * BLOCK_BYTES, "lag": lag} | extra
    return offloading(spec_module_path=__name__, **extra)


class HostSpec(CPUOffloadingSpec):
    """Stock's spec with the copying worker."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._copying: LateWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._copying is None:
            assert self.config.worker_kv_bytes_per_block == BLOCK_BYTES
            sizes = [(each.tensor.shape[1] * self.blocks_per_chunk) for each in kv_caches.tensors]
            host = [torch.zeros((self.num_chunks, size), dtype=torch.int8) for size in sizes]
            self._copying = LateWorker(kv_caches, host, self.blocks_per_chunk, self.extra_config["lag"])
        return self._copying


class TieredHostSpec(TieringOffloadingSpec):
    """Stock's spec of several tiers, the host's memory first, with the copying worker."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            self.config.engine_id, self.num_chunks, 0, self.kv_bytes_per_chunk, self.cpu_page_size_per_worker
        )
        host = [region.create_next_worker_view(each.tensor.shape[1]) for each in kv_caches.tensors]
        return LateWorker(kv_caches, host, self.blocks_per_chunk, self.extra_config["lag"])


@dataclass
class Job:
    """A transfer."""

    number: int  # The connector's number for it.
    device: GPULoadStoreSpec  # The engine's blocks.
    host: BlockIDsLoadStoreSpec  # The tier's chunks.
    store: bool  # Whether it goes to the tier.
    left: int  # Steps for which it is left undone.


class LateTransfers(OffloadingWorker):
    """Runs transfers in order, each ``lag`` steps late; a chunk of the tier holds several blocks of the engine."""

    def __init__(self, blocks_per_chunk: int, lag: int) -> None:
        self._blocks_per_chunk, self._lag = blocks_per_chunk, lag
        # Blocks that get garbage, by the number of the load.
        self.lose: dict[int, set[int]] = {}
        self._jobs: deque[Job] = deque()
        self._done: list[TransferResult] = []

    @abstractmethod
    def copy(self, store: bool, group: int, block: int, chunk: int, place: int) -> None:
        """Copy one block of the engine to its place in a chunk of the tier, or back."""

    @abstractmethod
    def spoil(self, group: int, block: int) -> None:
        """Fill a block of the engine with garbage."""

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
            self._run(self._jobs.popleft())
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        while any(job.number in job_ids for job in self._jobs):
            self._run(self._jobs.popleft())

    def _run(self, job: Job) -> None:
        blocks, chunks = iter(np.asarray(job.device.block_ids).tolist()), iter(job.host.block_ids.tolist())
        for group, (size, first) in enumerate(zip(job.device.group_sizes, job.device.block_indices, strict=True)):
            chunk = -1
            for index in range(first, first + size):
                place = index % self._blocks_per_chunk
                if index == first or place == 0:
                    chunk = next(chunks)
                block = next(blocks)
                if block in self.lose.get(job.number, ()):
                    self.spoil(group, block)
                else:
                    self.copy(job.store, group, block, chunk, place)
        self._done.append(TransferResult(job.number, True))


class LateWorker(LateTransfers):
    """Copies blocks between the engine's cache and ``host``, ``[chunks, bytes]`` for each tensor of the cache."""

    def __init__(self, kv_caches: CanonicalKVCaches, host: list[torch.Tensor], blocks_per_chunk: int, lag: int) -> None:
        super().__init__(blocks_per_chunk, lag)
        self._device = [each.tensor for each in kv_caches.tensors]
        self._host = [each.unflatten(1, (blocks_per_chunk, -1)) for each in host]
        self._tensors = [sorted({ref.tensor_idx for ref in refs}) for refs in kv_caches.group_data_refs]

    def copy(self, store: bool, group: int, block: int, chunk: int, place: int) -> None:
        for tensor in self._tensors[group]:
            device, host = self._device[tensor][block], self._host[tensor][chunk, place]
            if store:
                host.copy_(device)
            else:
                device.copy_(host)

    def spoil(self, group: int, block: int) -> None:
        for tensor in self._tensors[group]:
            self._device[tensor][block].fill_(85)


class LossyConnector(OffloadingConnector):
    """Stock's connector to a tier that loses the last block of some loads; a user's own, as far as vLLM knows.

    Its ``kv_connector_extra_config`` has ``lose``: how many loads are lost before all go well.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        assert vllm_config.kv_transfer_config is not None
        self._left = vllm_config.kv_transfer_config.kv_connector_extra_config["lose"]
        self._lost: dict[int, set[int]] = {}
        self._reported: set[int] = set()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        worker = self.connector_worker.worker  # type: ignore[union-attr]
        for number, job in self._connector_metadata.load_jobs.items():  # type: ignore[union-attr]
            if self._left:
                self._left -= 1
                worker.lose[number] = self._lost[number] = set(job.dst_spec.block_ids.tolist()[-1:])
        super().start_load_kv(forward_context, **kwargs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        before = set(self.connector_worker._load_jobs)  # type: ignore[union-attr]
        finished = super().get_finished(finished_req_ids)
        for number in before - set(self.connector_worker._load_jobs):  # type: ignore[union-attr]
            self._reported |= self._lost.pop(number, set())
        return finished

    def get_block_ids_with_load_errors(self) -> set[int]:
        reported, self._reported = self._reported, set()
        return reported


@dataclass
class Tally:
    """What an engine has computed and found in its tier since it was asked last."""

    computed: int = 0  # Tokens that were run through the model.
    external: int = 0  # Tokens that the tier supplied to new requests.
    resumed: int = 0  # Tokens that it supplied to preempted ones.

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
