"""Checks that ``--max-num-seqs`` fits the memory: lowers vLLM's default if it does not, and refuses a user's value."""

import argparse
from dataclasses import dataclass

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start.fit.memory import GIB, PROCESSES, Memory, engines, gib, ranks
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory, most, power_of_two

_FLAG = "--max-num-seqs"


@dataclass(frozen=True)
class Machine:
    """The machine as vLLM sees it.

    Attributes:
        device: Kind of device: ``cpu``, ``cuda`` and so on.
        devices: Devices of this machine.
        device_bytes: Bytes of memory of one device.
        v2: Whether the V2 model runner is the default.
        sequences: Default of ``--max-num-seqs``.
    """

    device: str
    devices: int
    device_bytes: int
    v2: bool
    sequences: int


def check(args: argparse.Namespace, machine: Machine, memory: Memory, each: SequenceMemory, taken: int) -> list[str]:
    """Refuse more sequences than fit, or set a lower ``max_num_seqs`` if the user gave none.

    Args:
        args: Parsed by vLLM.
        machine: This machine.
        memory: Its host memory, of which ``taken`` bytes are for everything else.
        each: Memory that a rank reserves.

    Returns:
        The chosen number, as lines for the startup log.

    Raises:
        UsageError: naming the flag, its value, what fits and what to do.
    """
    count = ranks(args)
    if machine.device != "cpu":
        # Ray puts the others on other machines.
        count = min(count, machine.devices)
    if not count:
        return []
    left = max(memory.free - taken, 0)
    tables = _for_tables(args, machine)

    def problem(sequences: int) -> str | None:
        if (host := each.host_bytes(sequences) * count) > left:
            over = f" on {count} ranks" if count > 1 else ""
            return (
                f"{sequences} sequences of {each.max_model_len} tokens reserve {gib(host)} of host memory{over}, of which "
                f"{gib(left)} is left ({gib(memory.free)} of {gib(memory.total)} is free)"
            )
        if tables is not None and (device := each.device_bytes(sequences)) > tables:
            return (
                f"the block tables of {sequences} sequences of {each.max_model_len} tokens take {gib(device)} of each GPU, "
                f"and --gpu-memory-utilization {args.gpu_memory_utilization:g} leaves {gib(tables)} for them"
            )
        return None

    given = args.max_num_seqs
    wanted = given or machine.sequences
    if (reason := problem(wanted)) is None:
        return []
    fitting = most(lambda sequences: problem(sequences) is None, wanted)
    if fitting == 0:
        raise UsageError(f"{_FLAG}: {problem(1)}; use a shorter --max-model-len, or stop other processes")
    # Ranks on other machines need the same number.
    if given is not None or args.nnodes > 1 or args.headless or engines(args) != args.data_parallel_size:
        raise UsageError(
            f"{_FLAG}: {wanted} does not fit: {reason}; use at most {fitting}, the same on every node of this server, or a "
            "shorter --max-model-len"
        )
    args.max_num_seqs = power_of_two(fitting)
    return [f"{_FLAG}: {args.max_num_seqs} instead of the default, {wanted}: {reason}"]


def taken_beside_gpus(args: argparse.Namespace) -> int:
    """Return the bytes of host memory that a server on GPUs takes for processes, and for offloaded KV cache and weights."""
    keys = (args.kv_offloading_size or 0) * engines(args) / args.nnodes
    return PROCESSES + int((keys + args.cpu_offload_gb * ranks(args)) * GIB)


def _for_tables(args: argparse.Namespace, machine: Machine) -> int | None:
    """Return the bytes of GPU memory left for V2's block tables, which it allocates after the KV cache.

    None if unknown: V1's tables are part of ``--gpu-memory-utilization``, and a KV cache size in bytes may leave any amount.
    """
    if machine.device == "cpu" or not machine.v2 or args.kv_cache_memory_bytes is not None:
        return None
    return machine.device_bytes - int(machine.device_bytes * args.gpu_memory_utilization)
