"""Every upstream symbol that this package replaces, wraps or subclasses, with the fingerprints it was written for."""

from collections.abc import Callable
from typing import Any

from ropeswitch.model_patches.guard.fingerprints import Patch

RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
STATES = "vllm.v1.worker.gpu.model_states"
V2_RUNNER = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
ASYNC = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
EXECUTOR = "vllm.v1.executor.multiproc_executor.MultiprocExecutor"
LORA_OPS = "vllm.lora.ops.torch_ops.lora_ops"
# Binds the same functions by name when it is imported.
PUNICA = "vllm.lora.punica_wrapper.punica_cpu"


def _on(vllm_config: Any, device_type: str) -> bool:
    return bool(vllm_config.device_config.device_type == device_type)


CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "always": lambda _: True,
    "CPUs": lambda config: _on(config, "cpu"),
    "GPUs": lambda config: _on(config, "cuda"),
    "V2 runner": lambda config: bool(config.use_v2_model_runner),
    "V1 runner": lambda config: not config.use_v2_model_runner,
    "V1 runner on CPUs": lambda config: _on(config, "cpu") and not config.use_v2_model_runner,
    "decode context parallel on CPUs": lambda config: (
        _on(config, "cpu") and config.parallel_config.decode_context_parallel_size > 1
    ),
}

# The kind of device without which a patch's upstream modules must not even be imported.
DEVICES = {"CPUs": "cpu", "V1 runner on CPUs": "cpu", "decode context parallel on CPUs": "cpu", "GPUs": "cuda"}

PATCHES = (
    Patch(
        target="vllm.model_executor.layers.rotary_embedding._ROPE_DICT",
        kind="replaced",
        file="model_patches/switch/rope_dict.py",
        relies_on={"vllm.model_executor.layers.rotary_embedding.get_rope": "9e03744cca456be8"},
    ),
    Patch(
        target="vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys",
        kind="wrapped",
        file="model_patches/switch/block_hash.py",
        relies_on={
            "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": "e10dec27bbb524e0",
            "vllm.v1.core.kv_cache_utils.hash_block_tokens": "d0c291ea6ecd103b",
            "vllm.v1.core.kv_cache_utils.get_request_block_hasher": "0dd2a4e0fa35b0b4",
        },
    ),
    Patch(
        target="vllm.v1.engine.core.EngineCore.preprocess_add_request",
        kind="wrapped",
        file="model_patches/switch/preprocess_add_request.py",
        relies_on={
            "vllm.v1.engine.core.EngineCore.preprocess_add_request": "e62bbf7b221cae19",
            "vllm.v1.engine.core.EngineCore.__init__": "b0b6cbc8d2618fc6",
            "vllm.v1.request.Request.__init__": "6e55f90569e57933",
            "vllm.v1.request.Request.update_block_hashes": "6d290c84a8f0888c",
        },
    ),
    Patch(
        target="vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size",
        kind="wrapped",
        file="model_patches/scheduling/step_times.py",
        relies_on={
            "vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size": "9a49387042d82b35",
            "vllm.v1.engine.core.EngineCore.__init__": "b0b6cbc8d2618fc6",
            f"{RUNNER}._dummy_run": "7bab69b94a748037",
            f"{V2_RUNNER}._dummy_run": "abd2d770e4b5a0cc",
        },
    ),
    Patch(
        target=SCHEDULER,
        kind="subclassed",
        file="model_patches/switch/scheduler.py",
        relies_on={
            f"{SCHEDULER}.schedule": "d5096ca4f939b113",
            f"{SCHEDULER}.add_request": "3299dae1dbcd02c1",
            f"{SCHEDULER}._preempt_request": "1d1096f50b63e895",
            f"{SCHEDULER}._update_request_with_output": "135e2721c50fe6d2",
            f"{SCHEDULER}.update_from_output": "b804d0083b999320",
            f"{SCHEDULER}._make_cached_request_data": "24cc53dbc21445bc",
            f"{SCHEDULER}._update_after_schedule": "2aff934c1978324e",
            f"{SCHEDULER}._update_request_as_session": "15bfa4606eb4fbe2",
            f"{SCHEDULER}._free_request_blocks": "bec7f3b7986a0e71",
            f"{SCHEDULER}._handle_blocked_waiting_request": "6021ea9dd1696e22",
            f"{SCHEDULER}._is_blocked_waiting_status": "226df322fd444a14",
            f"{SCHEDULER}._inflight_prefill_reserved_blocks": "066564cb240de264",
            f"{SCHEDULER}._request_remaining_blocks": "6d341515c03b20a1",
            f"{SCHEDULER}._enqueue_waiting_request": "7325af47b9ffd840",
            f"{SCHEDULER}.finish_requests": "31710ce2272b17a6",
            f"{SCHEDULER}.get_request_counts": "f64840da1b5b9d25",
            f"{SCHEDULER}.make_stats": "6f2b570fb3ea8422",
            "vllm.v1.request.Request.take_prefill_stats": "5cb81c61fe4f5098",
            "vllm.v1.metrics.stats.PrefillStats.set": "3b065eb090434436",
            "vllm.v1.core.sched.request_queue.RequestQueue": "c458a52ccebf9edc",
            "vllm.v1.core.kv_cache_manager.KVCacheManager.get_computed_blocks": "341b78d1c5ccd928",
            "vllm.v1.core.kv_cache_manager.KVCacheManager.allocate_slots": "a9394a759cd3264c",
            "vllm.v1.engine.core.EngineCore.step": "81263825e6f3caf5",
            "vllm.v1.engine.core.EngineCore.step_with_batch_queue": "5de87d3a18e5d083",
            f"{ASYNC}._update_after_schedule": "d325d673b6666bd7",
            f"{ASYNC}._update_request_with_output": "830d9ab5c619cafb",
        },
    ),
    Patch(
        target="vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        kind="subclassed",
        file="model_patches/cpu/cpu_model_runner.py",
        relies_on={
            "vllm.v1.worker.cpu_model_runner.CPUModelRunner.load_model": "223f82ba068e5a0a",
            f"{RUNNER}._sample": "0af8e0a433fbe438",
            f"{RUNNER}._bookkeeping_sync": "d04b924c8352f30e",
        },
        when="V1 runner on CPUs",
    ),
    Patch(
        target=RUNNER,
        kind="subclassed",
        file="model_patches/switch/gpu_model_runner.py",
        relies_on={
            f"{RUNNER}.execute_model": "924ea20385e037dd",
            f"{RUNNER}._update_states": "4265bbbcb2e66460",
            f"{RUNNER}._prepare_inputs": "bd074aa99be6ad34",
            f"{RUNNER}._preprocess": "62731d22ff7e3d9e",
            f"{RUNNER}._model_forward": "c8fd1b6a4567f71a",
            f"{RUNNER}._dummy_run": "7bab69b94a748037",
        },
        when="V1 runner",
    ),
    Patch(
        target=f"{STATES}.resolve_model_state_cls",
        kind="wrapped",
        file="model_patches/switch/gpu_model_state.py",
        relies_on={},
    ),
    Patch(
        target=f"{STATES}.default.DefaultModelState",
        kind="subclassed",
        file="model_patches/switch/gpu_model_state.py",
        relies_on={
            f"{STATES}.resolve_model_state_cls": "f98c6544b9860199",
            f"{STATES}.init_model_state": "a4e19f950b8e6e04",
            f"{STATES}.default.DefaultModelState.__init__": "c2befe91c3c3d7e2",
            f"{STATES}.default.DefaultModelState.add_request": "beb2242dcb245a00",
            f"{STATES}.default.DefaultModelState.prepare_inputs": "8f0db7075302bd37",
            f"{STATES}.default.DefaultModelState.prepare_dummy_inputs": "9c694518a75d98a6",
            "vllm.v1.worker.gpu.warmup._warmup_kernels": "3cbb487220cab0a2",
            "vllm.v1.worker.gpu.warmup.run_mixed_prefill_decode_warmup": "59e5bde666808d41",
            f"{V2_RUNNER}.add_requests": "c0ab04c822c19df7",
            f"{V2_RUNNER}.execute_model": "df19e56f6bf34610",
            f"{V2_RUNNER}.prepare_inputs": "9db3237661ab9760",
            "vllm.v1.worker.gpu.cudagraph_utils.ModelCudaGraphManager.capture": "f475cfa2eded9535",
        },
        when="V2 runner",
    ),
    Patch(
        target="vllm.v1.worker.gpu_worker.Worker",
        kind="subclassed",
        file="model_patches/switch/gpu_worker.py",
        relies_on={
            "vllm.v1.worker.gpu_worker.Worker.init_device": "8c582c88865d594b",
            "vllm.v1.worker.gpu_worker.Worker._make_model_runner": "7f732f69be848171",
        },
        when="GPUs",
    ),
    Patch(
        target="vllm.v1.worker.cpu_worker.CPUWorker",
        kind="subclassed",
        file="model_patches/cpu/cpu_worker.py",
        relies_on={
            "vllm.v1.worker.cpu_worker.CPUWorker.init_device": "825b3891768fb121",
            "vllm.distributed.device_communicators.cpu_communicator._CPUSHMDistributed.make_group_name": "fb74ec750bebfdbf",
            "vllm.distributed.device_communicators.cpu_communicator._CPUSHMDistributed._init_cpu_shm": "49a6da3101f2cd45",
        },
        when="CPUs",
    ),
    *(
        Patch(
            target=f"{module}.{name}",
            kind="wrapped",
            file="model_patches/cpu/bgmv_expand.py",
            relies_on={},
            when="CPUs",
        )
        for module, name in ((LORA_OPS, "bgmv_expand_slice"), (PUNICA, "bgmv_expand"), (PUNICA, "bgmv_expand_slice"))
    ),
    Patch(
        target=f"{LORA_OPS}.bgmv_expand",
        kind="wrapped",
        file="model_patches/cpu/bgmv_expand.py",
        relies_on={
            f"{LORA_OPS}.bgmv_expand": "2e9c24d2dd49a18d",
            f"{LORA_OPS}.bgmv_expand_slice": "ca41691da5b46f00",
            f"{LORA_OPS}.sgmv_expand": "342a0d1d6899e394",
            f"{LORA_OPS}.sgmv_expand_slice": "fe06c9bdbb0bb182",
            f"{PUNICA}.PunicaWrapperCPU.add_lora_linear": "61b6945fd5e566b7",
        },
        when="CPUs",
    ),
    Patch(
        target=f"{EXECUTOR}.shutdown",
        kind="wrapped",
        file="model_patches/serving/executor_shutdown.py",
        relies_on={
            f"{EXECUTOR}.shutdown": "a22498f9649fb172",
            f"{EXECUTOR}.start_worker_monitor": "5a7b2f17d10db703",
            f"{EXECUTOR}._ensure_worker_termination": "96ad616bcc0a8c6a",
        },
    ),
    Patch(
        target="vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
        kind="subclassed",
        file="model_patches/cpu/cpu_dcp_attention.py",
        relies_on={
            "vllm.platforms.cpu.CpuPlatform.get_attn_backend_cls": "9b9c790dc13e67bd",
            "vllm.v1.attention.backends.registry.register_backend": "306f21b877aae73e",
            "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend.supported_kv_cache_layouts": "4779239d17a3bb05",
            "vllm.v1.attention.backends.utils.get_dcp_local_seq_lens": "e8db889affbd3ec5",
            "vllm.v1.worker.cp_utils.check_attention_cp_compatibility": "0552930435df58a2",
            "vllm.model_executor.layers.attention.attention.unified_kv_cache_update": "ed3a1f5d22485144",
            "vllm.model_executor.layers.attention.attention.unified_attention_with_output": "707f7a1002552e43",
            "vllm.config.model.ModelConfig.verify_with_parallel_config": "86a0b994e7242181",
            f"{RUNNER}._build_attention_metadata": "6686f67fb7d807de",
        },
        when="decode context parallel on CPUs",
    ),
    Patch(
        target="vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel",
        kind="replaced",
        file="model_patches/cpu/slot_mapping_kernel.py",
        relies_on={
            "vllm.v1.worker.block_table.ComputeSlotMappingKernel.__call__": "b082ba305cfe818d",
            "vllm.v1.worker.block_table.BlockTable.compute_slot_mapping": "08fc5e4207d0ab08",
            "vllm.utils.cpu_triton_utils._compute_slot_mapping_kernel_impl": "d0c19fecdead37f7",
            "vllm.triton_utils.dispatcher.register_kernels": "029fa54dbb21a930",
            "vllm.v1.worker.worker_base.WorkerWrapperBase.init_worker": "c1a4c843fa5b45be",
        },
        when="decode context parallel on CPUs",
    ),
)
