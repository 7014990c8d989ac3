"""``vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel``: replaced on CPUs for sequences split over ranks.

replaces: the function that stands in for this Triton kernel on CPUs, through ``register_kernels``, if decode context
    parallelism is on.
why: upstream's function asserts a single rank.
what differs: tokens of other ranks get no slot; all other slots equal those of the Triton kernel on GPUs.
limits: CPUs without Triton, as in the CPU build.
when it can go: when ``vllm.utils.cpu_triton_utils._compute_slot_mapping_kernel_impl`` supports several ranks.
"""

import torch
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.worker.block_table import ComputeSlotMappingKernel

from ropeswitch.kernels.local_slots import local_slots

TARGET = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"


def register() -> None:
    """Replace the platform's kernel, which the worker process has already registered."""
    register_kernels({TARGET: split_slot_mapping})


def registered() -> bool:
    """Whether this process uses the replacement."""
    return getattr(ComputeSlotMappingKernel.kernel, "func", None) is split_slot_mapping


def split_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slot_mapping: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
    pad: int,
    triton_block_size: int,
) -> None:
    """Fill ``slot_mapping``, ``[max_num_tokens]`` int64: the step's slots, then ``pad``. Launched like the kernel."""
    requests = torch.arange(len(query_start_loc) - 1).repeat_interleave(query_start_loc.diff())
    count = len(requests)
    slot_mapping[count:max_num_tokens] = pad
    slot_mapping[:count] = local_slots(positions[:count], requests, block_table, block_size, ranks, rank, interleave)
