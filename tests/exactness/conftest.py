"""Checkpoints and engines that the exactness tests share; one engine lives at a time, in this process."""

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.convert_frame import _bytecode_hooks
from vllm.platforms.cpu import CpuPlatform

from tests.exactness import checkpoints
from tests.exactness.as_transformers import undecorated_afterwards
from tests.exactness.engines import engine
from tests.exactness.preloaded import end_ranks_that_are_left, preloaded
from tests.exactness.reference import Reference

# Looks at every name of every module, 1.3 s of a core for each engine.
REGISTER_KERNELS = staticmethod(cache(CpuPlatform.register_triton_kernel_overrides))


@pytest.fixture(scope="session")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.phi3(tmp_path_factory.mktemp("phi3"))


@pytest.fixture(scope="session")
def phi3_reference(phi3: Path) -> Reference:
    return Reference.load(phi3)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("llama"))


def starting(**environment: str) -> Iterator[Callable[..., Any]]:
    """Starts engines under some environment variables, and stops them when the test is over."""
    started: list[Any] = []

    def start_engine(*args: Any, **kwargs: Any) -> Any:
        started.append(engine(*args, **kwargs))
        return started[-1]

    # Starting and stopping an engine collect garbage four times, 0.6 s each over the million objects of the imports.
    # What was there before the engine is left out, but for garbage, which may hold locks and modes of torch.
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch, undecorated_afterwards(), preloaded():
        patch.setattr(CpuPlatform, "register_triton_kernel_overrides", REGISTER_KERNELS)
        for name in ("freeze", "unfreeze"):
            patch.setattr(gc, name, lambda: None)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield start_engine
        for llm in started:
            llm.llm_engine.engine_core.shutdown()
    started.clear()
    gc.collect()
    # A model that something still holds would look into every later compilation of the process.
    _bytecode_hooks.clear()


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Starts engines in this process."""
    yield from starting(VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.fixture
def start_processes() -> Iterator[Callable[..., Any]]:
    """Starts engines whose core and workers are processes of their own, as a server does."""
    yield from starting(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
    end_ranks_that_are_left()
