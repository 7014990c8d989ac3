"""Imports what takes long, once, in the process that those of the models are forked from."""

import gc
import importlib
import os

# What the processes of the models share: no hub, the engine inside, one thread each, nothing compiled.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
MODULES = (
    "tests.matrix.measure",
    "transformers.models.auto.modeling_auto",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "ropeswitch.model_patches.switch.engine.cpu_worker",
)

os.environ.update(ENVIRONMENT)
# A fork has no other thread than the one that forked it.
importlib.import_module("torch").set_num_threads(1)
for name in MODULES:
    importlib.import_module(name)
measure = importlib.import_module("tests.matrix.measure").measure

registry = importlib.import_module("vllm.model_executor.models.registry")
# vLLM inspects a model's class in a separate process, which imports everything again, so that nothing initializes CUDA.
registry._run_in_subprocess = lambda look: look()
# vLLM reads the attributes of all that modules hold; those of llvmlite's library, which Kimi's models load, are a function.
dispatcher = importlib.import_module("vllm.triton_utils.dispatcher")
dispatcher.vars = lambda value: found if hasattr(found := vars(value), "get") else {}  # type: ignore[attr-defined]
# vLLM builds encoders as placeholders for text alone, which never runs them; some have an attention kernel for GPUs only.
cpu = importlib.import_module("vllm.platforms.cpu")
backends = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum
cpu.CpuPlatform.get_supported_vit_attn_backends = classmethod(lambda _: [backends.TORCH_SDPA, backends.FLASH_ATTN])
# vLLM collects garbage several times a start, and would look at all of this each time.
gc.freeze()
# What Triton prints when this process ends says nothing about a model.
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
