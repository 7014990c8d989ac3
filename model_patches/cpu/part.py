"""The part ``cpu``: adds sequence parallelism, pipeline stages and fixes to upstream's CPU backend."""

from typing import Any

from ropeswitch.model_patches.switch.patching import replace
from ropeswitch.model_patches.switch.settings import WORKERS, RopeSettings, UnsupportedError

# Where configs have the number of heads of Mamba-2 layers.
MAMBA_2_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")

_LORA = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")


def attach(engine_args: Any, settings: RopeSettings) -> None:
    """Run the engine's CPU workers as :class:`~ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker`."""
    if engine_args.worker_cls == WORKERS["cpu"]:
        engine_args.worker_cls = "ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker"


def prepare(vllm_config: Any) -> None:
    """Patch a process of an engine on CPUs.

    Raises:
        UnsupportedError: for what upstream's CPU backend gets wrong.
    """
    if vllm_config.device_config.device_type != "cpu":
        return
    text = vllm_config.model_config.hf_text_config
    if vllm_config.cache_config.enable_prefix_caching and any(getattr(text, name, None) for name in MAMBA_2_HEADS):
        raise UnsupportedError(
            "enable_prefix_caching: True: vLLM's Mamba-2 layers fail with it on CPUs; start with --no-enable-prefix-caching"
        )
    # Imported here: upstream's CPU modules change torch for CPUs.
    from ropeswitch.model_patches.cpu.bgmv_expand import skipping_base_rows
    from ropeswitch.model_patches.cpu.cpu_dcp_attention import check_split_sequences

    for module in _LORA:
        replace(f"{module}.bgmv_expand", skipping_base_rows)
        replace(f"{module}.bgmv_expand_slice", skipping_base_rows)
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        check_split_sequences(vllm_config)
