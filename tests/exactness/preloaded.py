"""Forks the processes of engines from one that has imported vLLM, which takes a spawned process about 10 s."""

import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerContext, ForkServerProcess, _concrete_contexts
from multiprocessing.forkserver import _forkserver
from typing import Any
from unittest.mock import patch

import psutil
import torch
from prometheus_client import values

PRELOAD = "tests.exactness.preload"
# With it, ranks sleep in a collective until all are there. In vLLM's shared memory they spin, on cores that the others need.
COLLECTIVES, GLOO = "ROPESWITCH_TEST_COLLECTIVES", "gloo"
COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator"
USERS = ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")


class Process(ForkServerProcess):
    """A forked process with the environment of the process that starts it, like a spawned one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.environment: dict[str, str] = {}
        self.outputs: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        # Where the parent's output goes now; the fork server has its own.
        return self.__dict__ | {"outputs": [reduction.DupFd(fd) for fd in (1, 2)]}

    def start(self) -> None:
        self.environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        for fd, output in enumerate(self.outputs, 1):
            given = output.detach()
            os.dup2(given, fd)
            os.close(given)
        os.environ.clear()
        os.environ.update(self.environment)
        # It chooses files or memory when imported; several API servers name a folder later.
        values.ValueClass = values.get_value_class()
        # Without compiled models, what vLLM compiles is a few small functions, which takes each rank 5 s of a core.
        torch._dynamo.config.disable = self.environment.get("TORCH_COMPILE_DISABLE") == "1"
        # An engine's workers come from the same fork server, which this process did not start and so cannot wait for.
        is_gloo = self.environment.get(COLLECTIVES) == GLOO
        with (
            patch.object(_forkserver, "ensure_running", lambda: None),
            # The preloaded module did it.
            patch("vllm.platforms.cpu.CpuPlatform.register_triton_kernel_overrides", lambda *_: None)
            if PRELOAD in sys.modules
            else nullcontext(),
            patch(f"{COMMUNICATOR}._all_group_ranks_share_shm_group_name", lambda _: False)
            if is_gloo
            else nullcontext(),
            preloaded(),
        ):
            super().run()


class Context(ForkServerContext):
    Process = Process  # type: ignore[assignment]


@contextmanager
def preloaded() -> Iterator[None]:
    """Fork the processes of engines in this context, where vLLM would spawn them; on a GPU, vLLM spawns them."""
    if torch.cuda.is_available():
        # Importing the CPU's worker changes torch for CPUs.
        yield
        return
    multiprocessing.set_forkserver_preload([PRELOAD])
    # For a second after each message they would wait for the next one without sleeping, on cores that other tests need.
    pause = partial(time.sleep, 1e-4)
    with (
        patch(f"{USERS[0]}.get_mp_context", Context),
        patch(f"{USERS[1]}.get_mp_context", Context),
        patch("vllm.distributed.device_communicators.shm_broadcast.sched_yield", pause),
    ):
        yield


def end_ranks_that_are_left() -> None:
    """End the processes of stopped engines that still run.

    A rank ends when the pipe to its engine closes, which other forked processes may hold open.
    """
    if _forkserver._forkserver_pid is not None:
        _, left = psutil.wait_procs(psutil.Process(_forkserver._forkserver_pid).children(), timeout=2)
        for process in left:
            process.kill()


def fork_where_vllm_spawns() -> None:
    """Start all further processes, and theirs, by forking a copy of this process, which keeps its imports."""
    _concrete_contexts["spawn"] = Context()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0ropeswitch-{os.getpid()}")
        listener.listen()
        alive, ours = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(ours)
            try:
                forkserver.main(listener.detach(), alive, [])
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(alive)
        _forkserver._forkserver_address = listener.getsockname()
    _forkserver._forkserver_alive_fd, _forkserver._forkserver_pid = ours, process
