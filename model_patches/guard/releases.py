"""Declares the vLLM releases that ropeswitch works with, and what differs between them: no other file names one."""

RELEASES = ("0.32.0",)
# Served only in the environment for tests (requirements/other_release.py), until every test passes there. Paths below and in
# all records are written for the last one.
IN_PREPARATION = ("0.33.0",)

# Modules that an earlier release has under another name, by release: today's name, then that one.
EARLIER = {
    "0.32.0": {
        "vllm.entrypoints.common.cli_args": "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.common.startup": "vllm.entrypoints.serve.utils.api_utils",
        "vllm.v1.core.kv_cache_planning": "vllm.v1.core.kv_cache_utils",
    }
}

_LORA_OPS = "vllm.lora.ops.torch_ops.lora_ops"
_PUNICA = "vllm.lora.punica_wrapper.punica_cpu"
# Symbols that only one release has, or needs patched, and what only its patches rely on.
ONLY = {
    "vllm.v1.core.kv_cache_utils.generate_lookahead_block_hash_extra_keys": "0.33.0",
    # 0.33.0 skips rows without an adapter itself.
    **dict.fromkeys((f"{_LORA_OPS}.bgmv_expand", f"{_LORA_OPS}.bgmv_expand_slice"), "0.32.0"),
    # The wrapper's module binds the same functions by name on import.
    **dict.fromkeys((f"{_PUNICA}.bgmv_expand", f"{_PUNICA}.bgmv_expand_slice"), "0.32.0"),
    **dict.fromkeys((f"{_LORA_OPS}.sgmv_expand", f"{_LORA_OPS}.sgmv_expand_slice"), "0.32.0"),
    f"{_PUNICA}.PunicaWrapperCPU.add_lora_linear": "0.32.0",
}
