"""Host-side helpers for both Triton ops: check tensors before a launch, and round sizes up."""

from typing import Any

import torch
import triton

# Fused multiply-adds, which round once. Passed explicitly, because Triton is about to change its default.
FUSED = True


def check(
    kernel: Any, device: torch.device, *tensors: tuple[str, torch.Tensor, tuple[torch.dtype, ...], tuple[int, ...]]
) -> None:
    """Refuse a device that ``kernel`` cannot run on, and tensors that it would misread.

    Args:
        kernel: A ``@triton.jit`` function; interpreted if ``TRITON_INTERPRET=1`` was set when its module was imported.
        device: Required device of all tensors.
        tensors: Name, tensor, allowed dtypes and required shape of each; all must be contiguous.

    Raises:
        RuntimeError: If ``device`` is a CPU and the kernel is not interpreted.
        TypeError, ValueError: If a tensor does not meet its requirements.
    """
    if device.type == "cpu" and isinstance(kernel, triton.JITFunction):
        raise RuntimeError(
            f"{kernel.__name__} got tensors on device 'cpu', but runs on a GPU only, or in Triton's interpreter "
            "(TRITON_INTERPRET=1 when its module is imported); CPU engines use kernels/fill_rows.py and apply_rows.py"
        )
    for name, tensor, dtypes, shape in tensors:
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} has dtype {tensor.dtype}, but must be {' or '.join(map(str, dtypes))}")
        if tensor.shape != shape or not tensor.is_contiguous() or tensor.device != device:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()} on {tensor.device}, but must be "
                f"contiguous {list(shape)} on {device}"
            )


def power_of_2(number: int) -> int:
    """Return the smallest power of 2 that is at least ``number``; 0 for 0. Triton's own function takes 1.6 us per call."""
    return 1 << (number - 1).bit_length() if number else 0
