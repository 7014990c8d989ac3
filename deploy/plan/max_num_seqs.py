"""Chooses ``--max-num-seqs``: vLLM's default, or fewer if host memory or GPU memory for block tables is too small."""

from dataclasses import dataclass

from ropeswitch.deploy.plan.costs import BLOCK_SIZE, GIB, Workload
from ropeswitch.deploy.plan.gpus import Gpu, default_max_num_seqs
from ropeswitch.deploy.plan.layouts import Layout, Placement
from ropeswitch.server.start.fit.memory import PROCESSES, gib
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory, most, power_of_two


@dataclass(frozen=True)
class Reserved:
    """Memory that vLLM reserves at startup for the sequences of a replica: host memory of a pod, and tables on each GPU.

    ``max_num_seqs`` is 0 if not one sequence fits. ``missing`` says why vLLM's default, or a single sequence, does not fit.
    """

    max_num_seqs: int
    host_bytes: int
    table_bytes: int
    missing: str


def reserve(layout: Layout, placement: Placement, gpu: Gpu, load: Workload, pod_memory: int | None) -> Reserved:
    """Choose ``--max-num-seqs`` on the V2 model runner, vLLM's default on GPUs; ``pod_memory`` in bytes, None if unknown."""
    each = SequenceMemory(load.max_model_len, BLOCK_SIZE, layout.decode_context)
    ranks = placement.gpus_per_node
    # vLLM allocates the tables after the KV cache has taken its share of the GPU.
    tables = int(gpu.memory_gib * GIB * (1 - load.memory_utilization))

    def missing(sequences: int) -> str:
        if pod_memory is not None and (host := each.host_bytes(sequences) * ranks) > pod_memory - PROCESSES:
            return f"--max-num-seqs {sequences} reserves {gib(host)} of host memory, but a pod has {gib(pod_memory)}"
        if (device := each.device_bytes(sequences)) > tables:
            return (
                f"the block tables of --max-num-seqs {sequences} take {gib(device)} per GPU, but --gpu-memory-utilization "
                f"leaves {gib(tables)}"
            )
        return ""

    default = default_max_num_seqs(gpu)
    count = most(lambda sequences: not missing(sequences), default)
    count = power_of_two(count) if count else 0
    why = "" if count == default else missing(default if count else 1)
    return Reserved(count, each.host_bytes(count or 1) * ranks, each.device_bytes(count or 1), why)
