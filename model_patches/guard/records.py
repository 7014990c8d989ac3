"""The upstream symbols that an engine's patches replace, wrap or subclass, with the functions that each patch relies on."""

from collections.abc import Callable
from typing import Any

from ropeswitch.model_patches.guard.fingerprints import Patch
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.parts import SERVER

RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
STATES = "vllm.v1.worker.gpu.model_states"
V2_RUNNER = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
ASYNC = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
# Key in `CONDITIONS` for engines with that connector.
NIXL_ONLY = "NIXL"
EXECUTOR = "vllm.v1.executor.multiproc_executor.MultiprocExecutor"
LORA_OPS = "vllm.lora.ops.torch_ops.lora_ops"
# Latent attention, and the plain attention that takes its place with VLLM_MLA_DISABLE.
LATENT = "vllm.model_executor.layers.mla.MultiHeadLatentAttentionWrapper.forward"
EXPANDED = "vllm.model_executor.models.deepseek_v2.DeepseekV2Attention.forward"
# This module binds the same functions by name on import.
PUNICA = "vllm.lora.punica_wrapper.punica_cpu"


def _on(vllm_config: Any, device_type: str) -> bool:
    return bool(vllm_config.device_config.device_type == device_type)


def _has_key(vllm_config: Any) -> bool:
    return KEY in (getattr(vllm_config, "additional_config", None) or ())


def _scales_softmax(vllm_config: Any) -> bool:
    settings = settings_of(vllm_config)
    return settings is not None and settings.ladder.scales_softmax


def _has_nixl(vllm_config: Any) -> bool:
    config = vllm_config.kv_transfer_config
    return config is not None and any(config.has_connector(name) for name in ("NixlConnector", "NixlPullConnector"))


# Patched where prompts enter, in the process of the engine client, and so in no worker.
CLIENTS = "engine clients"
SERVED = "`ropeswitch serve`"
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "always": lambda _: True,
    "CPUs": lambda config: _on(config, "cpu"),
    "GPUs": lambda config: _on(config, "cuda"),
    "V2 runner": lambda config: bool(config.use_v2_model_runner),
    "V1 runner": lambda config: not config.use_v2_model_runner,
    "V1 runner on CPUs": lambda config: _on(config, "cpu") and not config.use_v2_model_runner,
    CLIENTS: lambda _: True,
    SERVED: lambda config: _has_key(config) and SERVER in config.additional_config[KEY]["parts"],
    "softmax scales": _scales_softmax,
    NIXL_ONLY: _has_nixl,
    "decode context parallel on CPUs": lambda config: (
        _on(config, "cpu") and config.parallel_config.decode_context_parallel_size > 1
    ),
}

# Device type by condition; on other devices these patches' upstream modules must not even be imported.
DEVICES = {"CPUs": "cpu", "V1 runner on CPUs": "cpu", "decode context parallel on CPUs": "cpu", "GPUs": "cuda"}

PATCHES = (
    Patch(
        target="vllm.model_executor.layers.rotary_embedding._ROPE_DICT",
        kind="replaced",
        file="model_patches/switch/engine/rope_dict.py",
        tests="tests/exactness/test_ladders.py",
        relies_on=("vllm.model_executor.layers.rotary_embedding.get_rope",),
    ),
    Patch(
        # Loaders that build models in another way are refused.
        target="vllm.model_executor.model_loader.base_loader.initialize_model",
        kind="wrapped",
        file="model_patches/switch/engine/initialize_model.py",
        tests="tests/exactness/test_families.py",
        relies_on=(),
    ),
    Patch(
        target="vllm.model_executor.models.llama4.Llama4Attention._get_attn_scale",
        kind="wrapped",
        file="model_patches/switch/rows/position_readers.py",
        tests="tests/exactness/test_families.py",
        relies_on=(
            "vllm.model_executor.models.llama4.Llama4Attention._get_attn_scale",
            "vllm.model_executor.models.mistral.MistralAttention._get_llama_4_attn_scale",
        ),
    ),
    Patch(
        target="vllm.v1.engine.input_processor.InputProcessor.process_inputs",
        kind="wrapped",
        file="model_patches/switch/engine/process_inputs.py",
        tests="tests/exactness/test_plugin.py",
        relies_on=(
            "vllm.v1.engine.input_processor.InputProcessor.process_inputs",
            "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys",
            "vllm.v1.core.kv_cache_utils.get_request_block_hasher",
            "vllm.v1.request.Request",
        ),
        when=CLIENTS,
    ),
    Patch(
        target="vllm.v1.engine.core.EngineCore.preprocess_add_request",
        kind="wrapped",
        file="model_patches/serving/packed_prompt.py",
        tests="tests/model_patches/test_packed_prompt.py",
        relies_on=("vllm.v1.engine.core.EngineCore.preprocess_add_request",),
        when=SERVED,
    ),
    Patch(
        target="vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size",
        kind="wrapped",
        file="model_patches/scheduling/step_times.py",
        tests="tests/model_patches/test_step_times.py",
        relies_on=(
            "vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size",
            f"{RUNNER}._dummy_run",
        ),
    ),
    Patch(
        target=SCHEDULER,
        kind="subclassed",
        file="model_patches/switch/engine/scheduler.py",
        tests="tests/model_patches/test_scheduler_properties.py",
        relies_on=(
            f"{SCHEDULER}.schedule",
            f"{SCHEDULER}.add_request",
            f"{SCHEDULER}._preempt_request",
            f"{SCHEDULER}.update_from_output",
            f"{SCHEDULER}._make_cached_request_data",
            f"{SCHEDULER}._update_after_schedule",
            f"{SCHEDULER}._update_request_as_session",
            f"{SCHEDULER}._free_request",
            f"{SCHEDULER}._free_request_blocks",
            f"{SCHEDULER}._handle_blocked_waiting_request",
            f"{SCHEDULER}.finish_requests",
            "vllm.v1.core.sched.request_queue.RequestQueue",
            "vllm.v1.core.kv_cache_manager.KVCacheManager.get_computed_blocks",
            "vllm.v1.core.kv_cache_manager.KVCacheManager.allocate_slots",
            "vllm.v1.engine.core.EngineCore.step_with_batch_queue",
            "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler.RequestOffloadState",
            f"{ASYNC}._update_after_schedule",
        ),
    ),
    Patch(
        target="vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        kind="subclassed",
        file="model_patches/cpu/cpu_model_runner.py",
        tests="tests/exactness/test_features.py",
        relies_on=(
            f"{RUNNER}._sample",
            f"{RUNNER}._bookkeeping_sync",
        ),
        when="V1 runner on CPUs",
    ),
    Patch(
        target=RUNNER,
        kind="subclassed",
        file="model_patches/switch/engine/gpu_model_runner.py",
        tests="tests/exactness/test_modes.py",
        relies_on=(
            f"{RUNNER}.execute_model",
            f"{RUNNER}._update_states",
            f"{RUNNER}._prepare_inputs",
            f"{RUNNER}._preprocess",
            f"{RUNNER}._model_forward",
            f"{RUNNER}._dummy_run",
        ),
        when="V1 runner",
    ),
    Patch(
        target=f"{STATES}.resolve_model_state_cls",
        kind="wrapped",
        file="model_patches/switch/engine/gpu_model_state.py",
        tests="tests/exactness/test_runners.py",
        relies_on=(),
    ),
    Patch(
        target=f"{STATES}.default.DefaultModelState",
        kind="subclassed",
        file="model_patches/switch/engine/gpu_model_state.py",
        tests="tests/exactness/test_runners.py",
        relies_on=(
            f"{STATES}.resolve_model_state_cls",
            f"{STATES}.default.DefaultModelState.add_request",
            f"{STATES}.default.DefaultModelState.prepare_inputs",
            f"{STATES}.default.DefaultModelState.prepare_dummy_inputs",
            f"{V2_RUNNER}.add_requests",
            f"{V2_RUNNER}.execute_model",
            f"{V2_RUNNER}.prepare_inputs",
            "vllm.v1.worker.gpu.cudagraph_utils.ModelCudaGraphManager.capture",
        ),
        when="V2 runner",
    ),
    Patch(
        target="vllm.v1.worker.gpu_worker.Worker",
        kind="subclassed",
        file="model_patches/switch/engine/gpu_worker.py",
        tests="tests/exactness/test_modes.py",
        relies_on=("vllm.v1.worker.gpu_worker.Worker._make_model_runner",),
        when="GPUs",
    ),
    Patch(
        target="vllm.v1.worker.cpu_worker.CPUWorker",
        kind="subclassed",
        file="model_patches/switch/engine/cpu_worker.py",
        tests="tests/exactness/test_modes.py",
        relies_on=(),
        when="CPUs",
    ),
    *(
        Patch(
            target=f"{module}.{name}",
            kind="wrapped",
            file="model_patches/cpu/bgmv_expand.py",
            tests="tests/exactness/test_features.py",
            relies_on=(),
            when="CPUs",
        )
        for module, name in ((LORA_OPS, "bgmv_expand_slice"), (PUNICA, "bgmv_expand"), (PUNICA, "bgmv_expand_slice"))
    ),
    Patch(
        target=f"{LORA_OPS}.bgmv_expand",
        kind="wrapped",
        file="model_patches/cpu/bgmv_expand.py",
        tests="tests/exactness/test_features.py",
        relies_on=(
            f"{LORA_OPS}.bgmv_expand",
            f"{LORA_OPS}.bgmv_expand_slice",
            f"{LORA_OPS}.sgmv_expand",
            f"{LORA_OPS}.sgmv_expand_slice",
            f"{PUNICA}.PunicaWrapperCPU.add_lora_linear",
        ),
        when="CPUs",
    ),
    Patch(
        target="vllm.v1.sample.rejection_sampler.expand_batch_to_tokens",
        kind="replaced",
        file="model_patches/cpu/expand_batch_to_tokens.py",
        tests="tests/exactness/test_draft_sampling.py",
        relies_on=(),
        when="CPUs",
    ),
    Patch(
        target=LATENT,
        kind="wrapped",
        file="model_patches/switch/rows/softmax_scales.py",
        tests="tests/exactness/test_latent_attention.py",
        relies_on=(LATENT, EXPANDED),
        when="softmax scales",
    ),
    Patch(
        target=EXPANDED,
        kind="wrapped",
        file="model_patches/switch/rows/softmax_scales.py",
        tests="tests/exactness/test_latent_expanded.py",
        relies_on=(),
        when="softmax scales",
    ),
    Patch(
        target=f"{NIXL}.connector.NixlPullConnector",
        kind="subclassed",
        file="model_patches/switch/kv/nixl_connector.py",
        tests="tests/disaggregation/",
        relies_on=(f"{NIXL}.pull_scheduler.NixlPullConnectorScheduler",),
        when=NIXL_ONLY,
    ),
    Patch(
        target=f"{EXECUTOR}.shutdown",
        kind="wrapped",
        file="model_patches/serving/executor_shutdown.py",
        tests="tests/server/test_lost_rank.py",
        relies_on=(f"{EXECUTOR}.shutdown",),
    ),
    Patch(
        target="vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
        kind="subclassed",
        file="model_patches/cpu/cpu_dcp_attention.py",
        tests="tests/exactness/test_context_parallel.py",
        relies_on=(
            "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend.supported_kv_cache_layouts",
            "vllm.v1.attention.backends.utils.get_dcp_local_seq_lens",
            "vllm.model_executor.layers.attention.attention.unified_kv_cache_update",
            "vllm.model_executor.layers.attention.attention.unified_attention_with_output",
            f"{RUNNER}._build_attention_metadata",
        ),
        when="decode context parallel on CPUs",
    ),
    Patch(
        target="vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel",
        kind="replaced",
        file="model_patches/cpu/slot_mapping_kernel.py",
        tests="tests/exactness/test_context_parallel.py",
        relies_on=(
            "vllm.v1.worker.block_table.ComputeSlotMappingKernel.__call__",
            "vllm.v1.worker.block_table.BlockTable.compute_slot_mapping",
        ),
        when="decode context parallel on CPUs",
    ),
)
