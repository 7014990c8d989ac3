"""The part ``cpu``: adds sequence parallelism, pipeline stages and fixes to upstream's CPU backend."""

from typing import Any

from ropeswitch.model_patches.switch.config.settings import WORKERS, RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.engine.patching import replace
from ropeswitch.model_patches.switch.kv.connectors import OFFLOADING, configured
from ropeswitch.model_patches.switch.releases import LORA_PRODUCTS, in_release

# Config fields with the number of heads of Mamba-2 layers.
MAMBA_2_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")

_PREFIX_CACHING = (
    "enable_prefix_caching: True: vLLM's Mamba-2 layers fail with it on CPUs; start with --no-enable-prefix-caching"
)
_TIER = "vLLM's host tier (kv_offloading_size) copies between a GPU and the host, and does not run on CPUs"
# OffloadingConnector specs whose worker copies between a GPU and the host; the first is the default.
GPU_SPECS = ("CPUOffloadingSpec", "TieringOffloadingSpec")


def attach(engine_args: Any, settings: RopeSettings) -> None:
    """Run the engine's CPU workers as :class:`~ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker`."""
    if engine_args.worker_cls == WORKERS["cpu"]:
        engine_args.worker_cls = "ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker"


def prepare(vllm_config: Any) -> None:
    """Patch a process of a CPU engine; refuse a configuration that upstream's CPU backend gets wrong."""
    if vllm_config.device_config.device_type != "cpu":
        return
    for each in configured(vllm_config.kv_transfer_config):
        spec = each.extra_config.get("spec_name", GPU_SPECS[0])
        if each.name == OFFLOADING and spec in GPU_SPECS:
            raise UnsupportedError(f"{each.where}.kv_connector_extra_config.spec_name: {spec!r}: {_TIER}")
    model, caching = vllm_config.model_config, vllm_config.cache_config.enable_prefix_caching
    # Attention-only models may have a hybrid's config.
    if caching and any(getattr(model.hf_text_config, name, None) for name in MAMBA_2_HEADS) and model.is_hybrid:
        raise UnsupportedError(_PREFIX_CACHING)
    # Imported here: upstream's CPU modules change torch for CPUs.
    from ropeswitch.model_patches.cpu.cpu_dcp_attention import check_split_sequences
    from ropeswitch.model_patches.cpu.torch_ops import expanding, skipping_base_rows

    replace("vllm.v1.sample.rejection_sampler.expand_batch_to_tokens", expanding)
    for target in filter(in_release, LORA_PRODUCTS):
        replace(target, skipping_base_rows)
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        check_split_sequences(vllm_config)
