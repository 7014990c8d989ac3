"""Checks that a server can start on this CPU machine: block size, core binding, compiler and memory."""

import argparse
import re
from collections.abc import Mapping

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.quoted import quoted
from ropeswitch.server.start.fit.compiler import check_compiler
from ropeswitch.server.start.fit.memory import fit, ranks, read_memory, taken
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory
from ropeswitch.server.start.fit.sequences import Machine
from ropeswitch.server.start.fit.sequences import check as check_sequences

# vLLM's attention on CPUs requires a block size that is a multiple of this many tokens.
BLOCK = 32
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
_CORES = r"\d+(-\d+)?(,\d+(-\d+)?)*"


def check(
    args: argparse.Namespace, environment: Mapping[str, str], machine: Machine, each: SequenceMemory
) -> list[str]:
    """Refuse flags that cannot work on this machine, and choose fitting sizes for those that the user did not set.

    Args:
        args: Parsed by vLLM; its ``kv_cache_memory_bytes`` and ``max_num_seqs`` may be set.
        environment: This process's environment.
        machine: This machine.
        each: Memory that a rank reserves for its sequences.

    Returns:
        The chosen sizes, as lines for the startup log.

    Raises:
        UsageError: naming the flag, its value and what to do.
    """
    if args.block_size is not None and args.block_size % BLOCK:
        raise UsageError(
            f"--block-size: {args.block_size} must be a multiple of {BLOCK} on a CPU; leave it out for the default, 128"
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
