"""The part ``triton``: one launch a step to fill the rows and one a layer to rotate by them, on GPUs."""

from typing import Any

import torch

# Kinds of device that Triton compiles for.
DEVICES = {"cuda"}


def kernels(device: torch.device) -> Any:
    """The module :mod:`~ropeswitch.model_patches.triton.kernels`; None for a device that torch alone serves."""
    if device.type not in DEVICES:
        return None
    # Not every CPU install has Triton.
    from ropeswitch.model_patches.triton import kernels

    return kernels
