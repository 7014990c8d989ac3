"""Which warm-up steps the engine times for its scheduler, and that a GPU compiles nothing for them once it serves."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CompilationConfig, CUDAGraphMode, ObservabilityConfig
from vllm.utils import jit_monitor
from vllm.v1.worker import gpu_worker

from ropeswitch.model_patches.scheduling import step_times
from ropeswitch.model_patches.scheduling.step_times import long_steps, measure, time_step
from ropeswitch.model_patches.switch.engine.gpu_worker import LadderGPUWorker


def config(most: int, engines: int = 1, jit_warm_up: bool = True, longest: int = 4096) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=most, max_num_seqs=8),
        model_config=SimpleNamespace(max_model_len=longest),
        parallel_config=SimpleNamespace(data_parallel_size=engines, data_parallel_index=0),
        kernel_config=SimpleNamespace(enable_jit_warmup=jit_warm_up),
        compilation_config=CompilationConfig(mode=0, cudagraph_mode=CUDAGraphMode.NONE),
    )


class Steps:
    """An engine whose steps take a fixed time and one per token; every other one is held up."""

    def __init__(self, fixed: float, token: float) -> None:
        self._fixed, self._token = fixed, token
        self.ran: list[int] = []

    def __call__(self, tokens: int) -> float:
        self.ran.append(tokens)
        return self._fixed + self._token * tokens + (0.5 * self._fixed if len(self.ran) % 2 else 0.0)


def test_longer_steps_are_tried_until_one_takes_long_enough() -> None:
    steps = Steps(0.001, 0.0005)
    (one, shortest), (tokens, seconds) = measure(steps, long_steps(config(8192)))
    assert one == 1 and shortest == pytest.approx(0.0015)
    assert seconds >= step_times.ENOUGH_SECONDS and tokens == 512
    assert steps.ran[-4:] == [step_times.FIRST_TOKENS, 128, 256, 512]


def test_no_step_and_no_sequence_of_it_is_longer_than_the_engine_allows() -> None:
    """Upstream shares a step's tokens among 8 sequences; on an H100 a longer one read memory that was not its own."""
    assert [measure(Steps(0.001, 1e-9), long_steps(config(most)))[1][0] for most in (100, 32)] == [100, 32]
    assert long_steps(config(8192, longest=100)) == [64, 128, 256, 512, 800]
    assert long_steps(config(8192, engines=2, longest=20)) == [160]


def test_engines_that_wait_for_each_other_try_the_same_steps() -> None:
    fast, slow = Steps(0.001, 1e-6), Steps(0.001, 1.0)
    measure(fast, long_steps(config(8192, 2))), measure(slow, long_steps(config(8192, 2)))
    assert fast.ran == slow.ran and fast.ran[-1] == step_times.SAME_TOKENS


class Compiling:
    """A model runner that reports a compilation to vLLM's monitor for each new number of tokens, as Triton does."""

    is_pooling_model = False

    def __init__(self) -> None:
        self.compiled: set[int] = set()
        self.lora_config = None

    def _dummy_run(self, num_tokens: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if num_tokens not in self.compiled and jit_monitor.is_active():
            jit_monitor._handle_jit_event(backend="Triton", event="kernel JIT compilation", fn_name=str(num_tokens))
        assert jit_monitor.is_active() or options["cudagraph_runtime_mode"] == CUDAGraphMode.NONE
        self.compiled.add(num_tokens)
        return torch.zeros(1), torch.zeros(1)

    def maybe_remove_all_loras(self, config: Any) -> None: ...

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> None: ...

    def capture_model(self) -> int:
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LadderGPUWorker]:
    """Starts a GPU's worker with upstream's own warm-up, which arms its monitor; only what needs a GPU is left out."""
    for name in ("kernel_warmup", "freeze_gc_heap", "maybe_attach_gc_debug_callback", "enable_gpu_sync_check"):
        monkeypatch.setattr(gpu_worker, name, lambda *_: None)
    monkeypatch.setattr(gpu_worker, "get_pp_group", lambda: SimpleNamespace(is_last_rank=True))
    monkeypatch.setattr(jit_monitor, "_active", False)

    def start(vllm_config: Any, parts: tuple[str, ...] = ("scheduling",)) -> LadderGPUWorker:
        worker = LadderGPUWorker.__new__(LadderGPUWorker)
        worker.vllm_config, worker.scheduler_config = vllm_config, vllm_config.scheduler_config
        worker.parallel_config, worker.compilation_config = vllm_config.parallel_config, vllm_config.compilation_config
        worker.model_config = SimpleNamespace(enforce_eager=False, seed=0)
        worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=1)
        worker.observability_config = ObservabilityConfig(jit_monitor_mode="error")
        worker.settings = SimpleNamespace(parts=parts, length_aware=True)
        worker.use_v2_model_runner, worker.profiler = False, None
        worker.device, worker.model_runner = torch.device("cpu"), Compiling()
        worker.compile_or_warm_up_model()
        return worker

    return start


@pytest.mark.parametrize("engines", [1, 2])
def test_timed_steps_compile_nothing_once_the_monitor_is_armed(started: Any, engines: int) -> None:
    vllm_config = config(300, engines)
    worker = started(vllm_config)
    assert jit_monitor.is_active()
    found = measure(
        lambda tokens: min(time_step(worker, tokens), step_times.ENOUGH_SECONDS / 2), long_steps(vllm_config)
    )
    assert [tokens for tokens, _ in found] == [1, 300 if engines == 1 else step_times.SAME_TOKENS]
