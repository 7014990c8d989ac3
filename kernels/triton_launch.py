"""What the Triton ops share on the host: checks of their arguments, and the size of a program's tile."""

from typing import Any

import torch
import triton

# Pairs of values that one program turns, and that one of its threads turns: 16 bytes of bf16 at a time, the widest access
# there is, twice in and twice out.
TILE = 1024
PER_THREAD = 8
# Multiply-adds round once. Said aloud, because Triton is about to change its default.
FUSED = True
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_device(kernel: Any, device: torch.device) -> None:
    """Refuse to launch where the kernel cannot run.

    Args:
        kernel: What ``@triton.jit`` made: a compiled function, or an interpreted one where
            ``triton.knobs.runtime.interpret`` (``TRITON_INTERPRET=1``) was set when its module was imported.
        device: Where the op's tensors are.

    Raises:
        RuntimeError: ``device`` is a CPU and the kernel is not interpreted.
    """
    if device.type == "cpu" and isinstance(kernel, triton.JITFunction):
        raise RuntimeError(
            f"{kernel.__name__} got tensors on device 'cpu', but runs on a GPU only, or in Triton's interpreter "
            "(TRITON_INTERPRET=1 when its module is imported); CPU engines use kernels/fill_rows.py and apply_rows.py"
        )


def check_rotation(query: torch.Tensor, rows: torch.Tensor, row_numbers: torch.Tensor, head_size: int) -> None:
    """Refuse what the kernels would misread.

    Raises:
        TypeError: A data type that is not allowed.
        ValueError: A shape that does not fit.
    """
    if query.dtype not in DTYPES:
        raise TypeError(f"query has dtype {query.dtype}, but must be bfloat16, float16 or float32")
    if rows.dtype != torch.float32 or row_numbers.dtype != torch.int64:
        raise TypeError(
            f"rows has dtype {rows.dtype} and row_numbers {row_numbers.dtype}, but they must be float32 and int64"
        )
    if rows.dim() != 2 or not rows.is_contiguous() or rows.shape[1] % 2 or not 0 < rows.shape[1] <= head_size:
        raise ValueError(
            f"rows has shape {tuple(rows.shape)} and strides {rows.stride()}, but must be [rows, rotary_dim], contiguous, "
            f"with an even rotary_dim of at most head_size {head_size}"
        )
    if row_numbers.shape != query.shape[:1] or not row_numbers.is_contiguous():
        raise ValueError(
            f"row_numbers has shape {tuple(row_numbers.shape)} and strides {row_numbers.stride()}, but must be contiguous "
            f"[{query.shape[0]}], one for each token of query"
        )


def head_layout(name: str, values: torch.Tensor, head_size: int, like: torch.Tensor) -> tuple[int, int, int]:
    """How many heads a token has, and the strides from token to token and from head to head.

    Args:
        name: The argument's name, for errors.
        values: ``[tokens, heads * head_size]`` or ``[tokens, heads, head_size]``; tokens may lie apart, as in a slice of a
            fused projection, and so may the heads of the second form.
        head_size: Values per head.
        like: Must have as many tokens, the same data type and the same device.

    Raises:
        ValueError: Another shape, or values of one head that do not lie side by side.
        TypeError: Another data type or device than that of ``like``.
    """
    if values.dtype != like.dtype or values.device != like.device:
        raise TypeError(f"{name} is {values.dtype} on {values.device}, but must be {like.dtype} on {like.device}")
    if values.shape[0] == like.shape[0] and values.stride(-1) == 1:
        if values.dim() == 3 and values.shape[2] == head_size:
            return values.shape[1], values.stride(0), values.stride(1)
        if values.dim() == 2 and values.shape[1] % head_size == 0:
            return values.shape[1] // head_size, values.stride(0), head_size
    raise ValueError(
        f"{name} has shape {tuple(values.shape)} and strides {values.stride()}, but must be [{like.shape[0]}, heads * "
        f"{head_size}] or [{like.shape[0]}, heads, {head_size}] with the values of a head side by side"
    )


def power_of_2(number: int) -> int:
    """The smallest one that is not below ``number``; 0 for 0. Triton's own costs more than it looks."""
    return 1 << (number - 1).bit_length() if number else 0


def blocks(number: int, size: int) -> int:
    """How many blocks of ``size`` hold ``number``."""
    return -(-number // size)


def tile(heads: int, pairs_block: int) -> tuple[int, int]:
    """How many heads one program turns, a power of two, and how many warps it takes for that."""
    heads_block = min(max(1, TILE // pairs_block), power_of_2(heads))
    return heads_block, max(1, heads_block * pairs_block // (32 * PER_THREAD))
