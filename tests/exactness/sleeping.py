"""Sleep mode on a CPU: vLLM's own worker sleeps and wakes, on a memory pool of the tests.

On a GPU, memory that was allocated while the model loaded loses its content at sleep level 2, and the KV cache at either
level. Here the pool finds the tensors that were made meanwhile, and overwrites them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from vllm import LLM
from vllm._custom_ops import CPUDNNLGEMMHandler
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

# A float32 is 12.08, as a kernel may multiply what it masks by 0; an int64 is larger than any index.
GARBAGE = 0x41


def _tensors() -> list[torch.Tensor]:
    objects = gc.get_objects()
    # Addresses of oneDNN's packed weights, which no GPU has.
    handles = {id(each.handler_tensor) for each in objects if type(each) is CPUDNNLGEMMHandler}
    # Not a compiler's fake tensors.
    found = [each for each in objects if type(each) is torch.Tensor or issubclass(type(each), torch.nn.Parameter)]
    on_device = [each for each in found if each.device.type == "cpu" and id(each) not in handles]
    return [each for each in on_device if each.untyped_storage().nbytes()]


@dataclass
class Pool:
    """Memory by tag; ``Worker._maybe_get_memory_pool_context`` allocates from it."""

    memory: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # What was allocated, as bytes.
    backup: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # What it held, where it is kept over a sleep.
    gone: set[str] = field(default_factory=set)  # Tags whose memory is not to be used until they wake.

    @contextmanager
    def use(self, tag: str) -> Iterator[None]:
        # Kept alive, so that no address is given out twice.
        before = _tensors()
        known = {each.untyped_storage().data_ptr() for each in before}
        yield
        found = {}
        for each in _tensors():
            storage = each.untyped_storage()
            if storage.data_ptr() not in known:
                found[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)
        inner = {each.data_ptr() for tensors in self.memory.values() for each in tensors}
        self.memory.setdefault(tag, []).extend(found[address] for address in found.keys() - inner)


class PoolBackend(SleepModeBackend):
    """Does to :class:`Pool` what vLLM's ``CuMemBackend`` does to a GPU's memory."""

    pool = Pool()

    def suspend(self, level: int = 1) -> None:
        kept = {"weights", "runtime"} if level == 1 else {"runtime"}
        for tag, memory in self.pool.memory.items():
            if tag in kept:
                self.pool.backup[tag] = [each.clone() for each in memory]
            for each in memory:
                each.fill_(GARBAGE)
            self.pool.gone.add(tag)

    def resume(self, tags: list[str] | None = None) -> None:
        for tag in list(self.pool.gone):
            if tags is None or tag in tags or tag == "runtime":
                for each, content in zip(self.pool.memory[tag], self.pool.backup.pop(tag, []), strict=False):
                    each.copy_(content)
                self.pool.gone.remove(tag)


@contextmanager
def sleeping_cpus() -> Iterator[Pool]:
    """Have CPU workers of this process sleep and wake as GPU workers do."""
    PoolBackend.pool = Pool()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sleep", "wake_up"):
            patch.setattr(CPUWorker, name, getattr(Worker, name))
        patch.setitem(SleepModeBackendFactory._registry, "cumem", lambda: PoolBackend)
        patch.setattr(CPUWorker, "_maybe_get_memory_pool_context", lambda self, tag: PoolBackend.pool.use(tag))
        patch.setattr(torch.accelerator, "synchronize", lambda: None)
        patch.setattr(torch.accelerator, "get_memory_info", lambda: (0, 0))
        yield PoolBackend.pool
    PoolBackend.pool = Pool()


def sleep_and_wake(llm: LLM, level: int = 2) -> None:
    """Send a whole engine to sleep and wake it, with the weights of its checkpoint."""
    llm.sleep(level=level)
    assert PoolBackend.pool.gone
    llm.wake_up()
    if level == 2:
        llm.collective_rpc("reload_weights")


class FolderTransfer(WeightTransferEngine[Any, Any]):
    """Receives weights in the format of checkpoints, from a trainer that leaves them in a folder."""

    init_info_cls = update_info_cls = dict

    def init_transfer_engine(self, init_info: Any) -> None: ...

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Any) -> None:
        self.model.load_weights(load_file(Path(update_info["folder"]) / "model.safetensors").items())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None: ...


WeightTransferEngineFactory.register_engine("tests-folder", FolderTransfer)
FROM_FOLDER = WeightTransferConfig(backend="tests-folder")
