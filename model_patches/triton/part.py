"""The part ``triton``: on GPUs, fills rows in one launch per step and rotates by them in one launch per layer."""

from typing import Any

import torch

# Device types that Triton compiles for.
DEVICES = {"cuda"}


def kernels(device: torch.device) -> Any:
    """Return :mod:`~ropeswitch.model_patches.triton.kernels`, or None for a device that uses torch alone."""
    if device.type not in DEVICES:
        return None
    # Not every CPU install has Triton.
    from ropeswitch.model_patches.triton import kernels

    return kernels
