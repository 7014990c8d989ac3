"""The upstream symbols that an engine's patches replace, wrap or subclass, with what each patch relies on."""

from ropeswitch.model_patches.guard.fingerprints import Patch
from ropeswitch.model_patches.switch.releases import LORA_CALLERS, LORA_PRODUCTS

RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
STATE = "vllm.v1.worker.gpu.model_states.default.DefaultModelState"
START = "vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size"
PROCESS = "vllm.v1.engine.input_processor.InputProcessor.process_inputs"
SLOTS = "vllm.v1.worker.block_table.ComputeSlotMappingKernel"
CPU_ATTENTION = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
V2_RUNNER = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
ASYNC = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
# The condition of patches for engines with that connector.
NIXL_ONLY = "NIXL"
# Qwen 4's sparse attention, and the condition of its patches.
QSA, QWEN4_ONLY = "vllm.models.qwen4_exp.nvidia", "Qwen 4 on GPUs"
# DeepSeek V3.2's sparse attention, of which nothing is replaced.
DSA = "vllm.models.deepseek_v32"
# Latent attention, and the plain attention that takes its place with VLLM_MLA_DISABLE.
LATENT = "vllm.model_executor.layers.mla.MultiHeadLatentAttentionWrapper.forward"
EXPANDED = "vllm.model_executor.models.deepseek_v2.DeepseekV2Attention.forward"

# Device type by condition; on other devices these patches' upstream modules must not even be imported.
ON_CPUS = ("CPUs", "V1 runner on CPUs", "decode context parallel on CPUs")
DEVICES = dict.fromkeys(ON_CPUS, "cpu") | {"GPUs": "cuda", QWEN4_ONLY: "cuda"}

PATCHES = (
    Patch(
        target="vllm.model_executor.layers.rotary_embedding._ROPE_DICT",
        kind="replaced",
        file="model_patches/switch/engine/rope_dict.py",
        tests="tests/exactness/test_ladders.py",
        relies_on={
            "vllm.model_executor.layers.rotary_embedding.get_rope": "a layer would get the rotation of another, as the key "
            "that it looks up would stand for other arguments"
        },
    ),
    Patch(
        # Loaders that build models in another way are refused.
        target="vllm.model_executor.model_loader.base_loader.initialize_model",
        kind="wrapped",
        file="model_patches/switch/engine/initialize_model.py",
        tests="tests/exactness/test_families.py",
    ),
    Patch(
        # What reads positions anywhere else is found when the model is built (`row_numbers.py`).
        target="vllm.model_executor.models.llama4.Llama4Attention._get_attn_scale",
        kind="wrapped",
        file="model_patches/switch/rows/position_readers.py",
        tests="tests/exactness/test_families.py",
    ),
    Patch(
        target=PROCESS,
        kind="wrapped",
        file="model_patches/switch/engine/process_inputs.py",
        tests="tests/exactness/test_plugin.py",
        relies_on={
            PROCESS: "a prompt would be placed by another length than the engine's, or lose its salt",
            "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": "without the salt in the first block's hash, "
            "sets would share cached keys",
            "vllm.v1.core.kv_cache_utils.generate_lookahead_block_hash_extra_keys": "without the salt in the first block's "
            "hash, sets would share cached keys",
            "vllm.v1.core.kv_cache_utils.get_request_block_hasher": "after a move, old hashes would be kept, or skipped",
            "vllm.v1.request.Request.update_block_hashes": "after a move, old hashes would be kept, or skipped",
            "vllm.v1.request.Request.from_engine_core_request": "the salt would not reach the engine's request",
        },
        when="engine clients",
    ),
    Patch(
        target="vllm.config.vllm.VllmConfig._limit_max_model_len_to_draft",
        kind="wrapped",
        file="model_patches/switch/engine/process_inputs.py",
        tests="tests/exactness/test_runners.py",
        when="engine clients",
    ),
    Patch(
        target=START,
        kind="wrapped",
        file="model_patches/scheduling/step_times.py",
        tests="tests/model_patches/test_step_times.py",
        relies_on={START: "steps would be planned by times that no one measured"},
    ),
    Patch(
        target=SCHEDULER,
        kind="subclassed",
        file="model_patches/switch/engine/scheduler.py",
        tests="tests/model_patches/test_scheduler_properties.py",
        relies_on={
            f"{SCHEDULER}.schedule": "a request could run past its set's end, or a step plan what it does not report",
            f"{SCHEDULER}._preempt_request": "a request would keep keys of the set before a switch",
            f"{SCHEDULER}.update_from_output": "a request's length would count tokens that were rejected or are in flight",
            f"{SCHEDULER}._make_cached_request_data": "workers would not learn the set of a request that resumes",
            f"{SCHEDULER}._update_after_schedule": "tokens of drafts past the set's end would count as computed",
            f"{ASYNC}._update_after_schedule": "placeholders would stand for drafts past the set's end",
            f"{SCHEDULER}._free_request_blocks": "blocks that a step in flight still writes would go to another request",
            f"{SCHEDULER}._update_request_as_session": "a session's next chunk would keep keys of another set",
            "vllm.v1.core.kv_cache_manager.KVCacheManager.allocate_slots": "a block with drafts that are no longer "
            "scheduled would be cached as full",
            "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler.RequestOffloadState": "keys would be "
            "offloaded under the hashes of the set before a switch",
        },
        overrides=("add_request", "_free_request", "_handle_blocked_waiting_request"),
    ),
    Patch(
        target="vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        kind="subclassed",
        file="model_patches/cpu/cpu_worker.py",
        tests="tests/exactness/test_features.py",
        overrides=("load_model", "_sample", "_bookkeeping_sync"),
        when="V1 runner on CPUs",
    ),
    Patch(
        target=RUNNER,
        kind="subclassed",
        file="model_patches/switch/engine/gpu_model_runner.py",
        tests="tests/exactness/test_modes.py",
        relies_on={
            f"{RUNNER}.execute_model": "the model would get true positions, which it takes for row numbers",
            f"{RUNNER}._model_forward": "the model would get true positions, which it takes for row numbers",
            f"{RUNNER}._prepare_inputs": "rows would be filled for other tokens than the model gets",
            f"{RUNNER}._dummy_run": "a CUDA graph would be captured on positions instead of row numbers",
        },
        overrides=("_update_states",),
        when="V1 runner",
    ),
    Patch(
        target=STATE,
        kind="subclassed",
        file="model_patches/switch/engine/gpu_model_state.py",
        tests="tests/exactness/test_runners.py",
        relies_on={
            f"{STATE}.prepare_inputs": "the model would get true positions, which it takes for row numbers",
            f"{STATE}.prepare_dummy_inputs": "a CUDA graph would be captured on positions instead of row numbers",
            f"{V2_RUNNER}.add_requests": "a slot would keep the set of the request before",
            f"{V2_RUNNER}.execute_model": "the model would get true positions, which it takes for row numbers",
            f"{V2_RUNNER}.prepare_inputs": "rows would be filled for other tokens than the model gets",
            "vllm.v1.worker.gpu.cudagraph_utils.ModelCudaGraphManager.capture": "a CUDA graph would read another buffer "
            "than the one with row numbers",
        },
        overrides=("add_request",),
        when="V2 runner",
    ),
    Patch(
        target="vllm.v1.worker.gpu_worker.Worker",
        kind="subclassed",
        file="model_patches/switch/engine/gpu_worker.py",
        tests="tests/exactness/test_modes.py",
        overrides=("_make_model_runner", "compile_or_warm_up_model", "load_model", "wake_up"),
        when="GPUs",
    ),
    Patch(
        target="vllm.v1.worker.cpu_worker.CPUWorker",
        kind="subclassed",
        file="model_patches/switch/engine/cpu_worker.py",
        tests="tests/exactness/test_modes.py",
        overrides=("init_device", "load_model", "wake_up"),
        when="CPUs",
    ),
    *(
        Patch(
            target=target,
            kind="wrapped",
            file="model_patches/cpu/torch_ops.py",
            tests="tests/exactness/test_features.py",
            relies_on=dict.fromkeys(LORA_CALLERS, "rows without an adapter would get the last one's"),
            when="CPUs",
        )
        for target in LORA_PRODUCTS
    ),
    Patch(
        target="vllm.v1.sample.rejection_sampler.expand_batch_to_tokens",
        kind="replaced",
        file="model_patches/cpu/torch_ops.py",
        tests="tests/exactness/test_draft_sampling.py",
        when="CPUs",
    ),
    *(
        Patch(
            target=target,
            kind="wrapped",
            file="model_patches/switch/rows/softmax_scales.py",
            tests=tests,
            relies_on={target: "queries would not be scaled by their request's set, or twice"},
            when="softmax scales",
        )
        for target, tests in (
            (LATENT, "tests/exactness/test_latent_attention.py"),
            (EXPANDED, "tests/exactness/test_model_modes.py"),
        )
    ),
    Patch(
        target=f"{NIXL}.connector.NixlPullConnector",
        kind="subclassed",
        file="model_patches/switch/kv/nixl_connector.py",
        tests="tests/disaggregation/",
        relies_on={
            f"{NIXL}.pull_scheduler.NixlPullConnectorScheduler": "blocks of another set, or freed ones, would be loaded"
        },
        when=NIXL_ONLY,
    ),
    Patch(
        target=f"{DSA}.attention.DeepseekV32Attention",
        kind="unchanged",
        file="model_patches/switch/rows/table_readers.py",
        tests="tests/model_patches/test_table_readers.py",
        relies_on=dict.fromkeys(
            (
                f"{DSA}.attention.DeepseekV32Attention.forward",
                f"{DSA}.attention.DeepseekV32Attention._sparse_indexer_and_attn",
                f"{DSA}.common.kernels._fused_norm_rope_kernel",
                f"{DSA}.common.kernels._fused_q_kernel",
                f"{DSA}.common.kernels._get_cos_sin",
            ),
            "tokens would be rotated by another row than their own",
        ),
        when="GPUs",
    ),
    Patch(
        target=f"{QSA}.indexer_qsa.apply_qsa_rope",
        kind="replaced",
        file="model_patches/switch/rows/group_rows.py",
        tests="tests/model_patches/test_table_readers.py",
        relies_on={f"{QSA}.indexer_qsa.QSAIndexer.forward": "groups would be rotated by another row than their own"},
        when=QWEN4_ONLY,
    ),
    Patch(
        target=CPU_ATTENTION,
        kind="subclassed",
        file="model_patches/cpu/cpu_dcp_attention.py",
        tests="tests/exactness/test_context_parallel.py",
        relies_on={
            f"{CPU_ATTENTION}.supported_kv_cache_layouts": "keys and values would be read from the wrong places",
            "vllm.v1.attention.backends.utils.get_dcp_local_seq_lens": "a rank would attend to other keys than it holds",
            "vllm.model_executor.layers.attention.attention.unified_kv_cache_update": "a rank's keys would not be written",
            f"{RUNNER}._build_attention_metadata": "a rank would attend to other keys than it holds",
        },
        when="decode context parallel on CPUs",
    ),
    Patch(
        target=f"{SLOTS}.kernel",
        kind="replaced",
        file="model_patches/cpu/cpu_dcp_attention.py",
        tests="tests/exactness/test_context_parallel.py",
        relies_on={f"{SLOTS}.__call__": "the kernel's arguments would come in another order"},
        when="decode context parallel on CPUs",
    ),
)
