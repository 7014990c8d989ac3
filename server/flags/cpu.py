"""Checks a start on a CPU against its machine: memory, compiler and block size."""

import argparse
import re
from collections.abc import Mapping

from ropeswitch.factors.quoted import quoted
from ropeswitch.server.errors import UsageError
from ropeswitch.server.flags.compiler import check_compiler
from ropeswitch.server.flags.memory import fit, ranks, read_memory, taken
from ropeswitch.server.flags.sequence_memory import SequenceMemory
from ropeswitch.server.flags.sequences import Machine
from ropeswitch.server.flags.sequences import check as check_sequences

# vLLM's attention on CPUs takes blocks of multiples of this many tokens.
BLOCK = 32
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
_CORES = r"\d+(-\d+)?(,\d+(-\d+)?)*"


def check(
    args: argparse.Namespace, environment: Mapping[str, str], machine: Machine, each: SequenceMemory
) -> list[str]:
    """Refuse what cannot start on this machine, and choose sizes that fit where the user did not.

    Args:
        args: Parsed by vLLM; its ``kv_cache_memory_bytes`` and ``max_num_seqs`` may be set.
        environment: This process's.
        machine: This machine.
        each: What a rank reserves for its sequences.

    Returns:
        What was chosen, as lines for the log of the start.

    Raises:
        UsageError: naming the flag, its value and what to do.
    """
    if args.block_size is not None and args.block_size % BLOCK:
        raise UsageError(
            f"--block-size: {args.block_size} must be a multiple of {BLOCK} on a CPU; leave it out for 128"
        )
    _check_binding(environment.get(BINDING, ""))
    check_compiler(args, environment)
    memory = read_memory()
    lines = check_sequences(args, machine, memory, each, taken(args, memory, environment))
    reserved = each.host_bytes(args.max_num_seqs or machine.sequences) * ranks(args)
    chosen = fit(args, memory, environment, reserved)
    return lines if chosen is None else [*lines, chosen]


def _check_binding(value: str) -> None:
    """Refuse a list of cores that ``vllm.utils.cpu_resource_utils.parse_id_list`` cannot read."""
    if value in ("", "auto", "nobind") or re.fullmatch(rf"{_CORES}(\|{_CORES})*", value):
        return
    allowed = "auto, nobind, or the CPU cores of each rank, such as 0-3 or 0-3|4-7 for two ranks"
    raise UsageError(f"{BINDING}: {quoted(value)} must be {allowed}")
