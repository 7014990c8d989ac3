"""The part ``cpu``: adds sequence parallelism, pipeline stages and fixes to upstream's CPU backend."""

from typing import Any

from ropeswitch.model_patches.switch.patching import replace
from ropeswitch.model_patches.switch.settings import WORKERS, RopeSettings

_LORA = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")


def attach(engine_args: Any, settings: RopeSettings) -> None:
    """Run the engine's CPU workers as :class:`~ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker`."""
    if engine_args.worker_cls == WORKERS["cpu"]:
        engine_args.worker_cls = "ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker"


def prepare(vllm_config: Any) -> None:
    """Patch a process of an engine on CPUs.

    Raises:
        UnsupportedError: for what decode context parallelism on CPUs gets wrong.
    """
    if vllm_config.device_config.device_type != "cpu":
        return
    # Imported here: upstream's CPU modules change torch for CPUs.
    from ropeswitch.model_patches.cpu.bgmv_expand import skipping_base_rows
    from ropeswitch.model_patches.cpu.cpu_dcp_attention import check_split_sequences

    for module in _LORA:
        replace(f"{module}.bgmv_expand", skipping_base_rows)
        replace(f"{module}.bgmv_expand_slice", skipping_base_rows)
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        check_split_sequences(vllm_config)
