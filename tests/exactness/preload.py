"""Imported by the process that engines and their workers are forked from: what each of them would do again.

Not ropeswitch's modules: vLLM loads them as a plugin in each process.
"""

import gc
import importlib

from vllm.platforms import current_platform

MODULES = [
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    # Of most engines, by vLLM or by our plugin.
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler",
    "vllm.engine.arg_utils",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.llama4",
    "vllm.model_executor.models.transformers",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.worker.gpu.model_states.default",
    "vllm.v1.worker.gpu.model_states.prompt_embeds",
]
for name in MODULES:
    importlib.import_module(name)
# Looks at every name of every module, 1.3 s of a core.
current_platform.register_triton_kernel_overrides()
# Engines collect garbage four times while they start: 0.5 s each over the million objects of the imports.
gc.freeze()
