"""Chooses ``--max-num-seqs``: vLLM's default, or fewer if host memory or GPU memory for block tables is too small."""

from dataclasses import dataclass

from ropeswitch.deploy.plan.costs import BLOCK_SIZE, GIB, Workload
from ropeswitch.deploy.plan.gpus import Gpu, server_defaults
from ropeswitch.deploy.plan.layouts import Layout, Placement
from ropeswitch.server.start.fit.memory import PROCESSES, gib
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory, most, power_of_two


@dataclass(frozen=True)
class Reserved:
    """Memory that vLLM reserves at start-up for the sequences of a replica.

    Attributes:
        max_num_seqs: Number of sequences; 0 if not even one fits.
        host_bytes: Host memory of one pod, which is one node of the replica.
        table_bytes: Memory of each GPU for block tables.
        missing: Why vLLM's default, or a single sequence, does not fit, with numbers; empty if the default fits.
    """

    max_num_seqs: int
    host_bytes: int
    table_bytes: int
    missing: str


def reserve(layout: Layout, placement: Placement, gpu: Gpu, load: Workload, pod_memory: int | None) -> Reserved:
    """Choose ``--max-num-seqs`` for a layout on the V2 model runner, vLLM's default on GPUs.

    Args:
        layout: Ranks of one replica.
        placement: Placement of the ranks.
        gpu: Kind of GPU.
        load: Requirements to plan for.
        pod_memory: Host memory of one pod in bytes; None if unknown.
    """
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

    default = server_defaults(gpu)[1]
    if (count := most(lambda sequences: not missing(sequences), default)) == 0:
        return Reserved(0, each.host_bytes(1) * ranks, each.device_bytes(1), missing(1))
    count = power_of_two(count)
    why = "" if count == default else missing(default)
    return Reserved(count, each.host_bytes(count) * ranks, each.device_bytes(count), why)
