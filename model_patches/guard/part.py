"""The part ``guard``: refuses any vLLM but those that the patches were written for, and a GPU that rotates wrongly."""

from typing import Any

from ropeswitch.model_patches.guard.kernel_check import check_kernels
from ropeswitch.model_patches.guard.registry import for_engine, require


def prepare(vllm_config: Any) -> None:
    """Compare every upstream symbol that an engine on this machine relies on with its fingerprint.

    Raises:
        RegistryError: naming a changed symbol, the pinned version and the command that lists the others.
    """
    require(for_engine(vllm_config))


def model_loaded(worker: Any) -> None:
    """Compare a GPU's kernels with the float64 reference.

    Raises:
        UnsupportedError: when they differ.
    """
    check_kernels(worker.step_rows, worker.get_model(), worker.settings)
