"""``--max-num-seqs``: as vLLM's own default, or as many sequences as host memory and block tables have room for."""

from dataclasses import dataclass

from ropeswitch.deploy.plan.costs import BLOCK_SIZE, GIB, Workload
from ropeswitch.deploy.plan.gpus import Gpu, server_defaults
from ropeswitch.deploy.plan.layouts import Layout, Placement
from ropeswitch.server.flags.memory import PROCESSES, gib
from ropeswitch.server.flags.sequence_memory import SequenceMemory, most, power_of_two


@dataclass(frozen=True)
class Reserved:
    """What vLLM reserves for the sequences of a replica, whether they come or not.

    Attributes:
        max_num_seqs: How many; 0 where not even one has room.
        host_bytes: Host memory of one pod, which is one node of the replica.
        table_bytes: Memory of each GPU for block tables.
        missing: What one sequence more would not fit in, with numbers; empty where the number is vLLM's default.
    """

    max_num_seqs: int
    host_bytes: int
    table_bytes: int
    missing: str


def reserve(layout: Layout, placement: Placement, gpu: Gpu, load: Workload, pod_memory: int | None) -> Reserved:
    """Choose ``--max-num-seqs`` for a layout on the V2 model runner, vLLM's default on GPUs.

    Args:
        layout: One replica's ranks.
        placement: Where they are.
        gpu: Kind of GPU.
        load: What is asked of it.
        pod_memory: Host memory of one pod, bytes; None where nobody knows it.
    """
    each = SequenceMemory(load.max_model_len, BLOCK_SIZE, layout.decode_context)
    ranks = placement.gpus_per_node
    # The tables are made when keys and values have taken their share of the GPU.
    tables = int(gpu.memory_gib * GIB * (1 - load.memory_utilization))

    def missing(sequences: int) -> str:
        if pod_memory is not None and (host := each.host_bytes(sequences) * ranks) > pod_memory - PROCESSES:
            return f"--max-num-seqs {sequences} reserves {gib(host)} of host memory, and a pod has {gib(pod_memory)}"
        if (device := each.device_bytes(sequences)) > tables:
            return (
                f"the block tables of --max-num-seqs {sequences} take {gib(device)} of a GPU, and --gpu-memory-utilization "
                f"leaves {gib(tables)}"
            )
        return ""

    default = server_defaults(gpu)[1]
    if (count := most(lambda sequences: not missing(sequences), default)) == 0:
        return Reserved(0, each.host_bytes(1) * ranks, each.device_bytes(1), missing(1))
    count = power_of_two(count)
    why = "" if count == default else missing(default)
    return Reserved(count, each.host_bytes(count) * ranks, each.device_bytes(count), why)
