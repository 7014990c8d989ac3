"""The engines of the scheduling benchmark: each in its own process, one at a time."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from ropeswitch.loadtests.scheduling.settings import KV_BYTES, MAXIMUM, Setting


class Side:
    """One engine in its own process; leaving its context ends the process even if it is busy.

    Args:
        folder: The checkpoint.
        setting: The engine's setting.
        compiled: Whether the model is compiled (vLLM's default) or runs eagerly.

    Raises:
        RuntimeError: here and in :meth:`run`, if the process ends; its traceback is then on stderr.
    """

    def __init__(self, folder: str, setting: Setting, compiled: bool) -> None:
        self.setting = setting
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, folder, setting, compiled), daemon=False)
        self._process.start()
        other.close()
        self._idle = False
        try:
            self._receive()
        except BaseException:  # including interrupts: nothing else can stop the process yet
            self._stop()
            raise

    def run(self, workload: str, **parameters: Any) -> dict[str, Any]:
        """Run a workload of ``workloads.py`` and return its record."""
        self._idle = False
        self._pipe.send((workload, parameters))
        return dict(self._receive())

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"{self.setting.name}: the engine's process ended with exit code {self._process.exitcode}"
            ) from None
        self._idle = True
        return answer

    def _stop(self) -> None:
        if self._idle:
            self._pipe.send(None)
            self._process.join(30)
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()


def _serve(pipe: Connection, folder: str, setting: Setting, compiled: bool) -> None:
    """Start an engine, report that it is ready, then run every requested workload."""
    # Ctrl-C reaches the whole process group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
    }
    engine = _start(folder, setting, compiled)
    pipe.send(None)

    from ropeswitch.loadtests.scheduling.workloads import WORKLOADS

    while (task := pipe.recv()) is not None:
        workload, parameters = task
        pipe.send(WORKLOADS[workload](engine, **parameters))


def _start(folder: str, setting: Setting, compiled: bool) -> Any:
    """Return vLLM's in-process engine, with the defaults that ``vllm serve`` would give it."""
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    common: dict[str, Any] = {
        "model": folder, "max_model_len": MAXIMUM, "skip_tokenizer_init": True, "enforce_eager": not compiled,
        "kv_cache_memory_bytes": KV_BYTES, "disable_log_stats": True, "use_tqdm_on_load": False,
    }  # fmt: skip
    args = EngineArgs(**(common | setting.arguments))
    if setting.ours:
        _configure(args, folder, setting)
    return LLMEngine.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)


def _configure(args: Any, folder: str, setting: Setting) -> None:
    from vllm.platforms import current_platform
    from vllm.transformers_utils.config import get_config

    from ropeswitch.factors.hf_config import ladder_from_config
    from ropeswitch.model_patches.switch.engine_args import configure
    from ropeswitch.model_patches.switch.settings import RopeSettings

    config = get_config(folder, trust_remote_code=False).to_dict()
    ladder = ladder_from_config(config)
    assert ladder is not None
    settings = RopeSettings(ladder, 10000.0, length_aware=setting.length_aware, step_latency_target=setting.target)
    configure(args, settings, config, device_name=current_platform.device_name)
