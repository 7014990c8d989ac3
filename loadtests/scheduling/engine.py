"""The engine of one setting of the scheduling benchmark, in its own process (``bench/sides.py``)."""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from ropeswitch.loadtests.bench.sides import with_ladder
from ropeswitch.loadtests.scheduling.settings import KV_BYTES, MAXIMUM, Setting


def serve(pipe: Connection, folder: str, setting: Setting) -> None:
    """Start an engine and report that it is ready, then run each workload whose name and parameters arrive on ``pipe``."""
    # Ctrl-C reaches the whole process group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
    }
    engine = _start(folder, setting)
    pipe.send(True)

    from ropeswitch.loadtests.scheduling.workloads import WORKLOADS

    while (task := pipe.recv()) is not None:
        workload, parameters = task
        pipe.send(WORKLOADS[workload](engine, **parameters))


def _start(folder: str, setting: Setting) -> Any:
    """Return vLLM's in-process engine, with the defaults that ``vllm serve`` would give it."""
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments: dict[str, Any] = {
        "model": folder, "max_model_len": MAXIMUM, "skip_tokenizer_init": True, "enforce_eager": True,
        "kv_cache_memory_bytes": KV_BYTES, "disable_log_stats": True, "use_tqdm_on_load": False, **setting.arguments,
    }  # fmt: skip
    if setting.ours:
        options = {"length_aware": setting.length_aware, "step_latency_target": setting.target}
        arguments = with_ladder(arguments, **options)
    return LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.OPENAI_API_SERVER)
