"""Checks that a server can start on this CPU machine: block size, compiler and memory."""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from sysconfig import get_path

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start.fit.memory import PROCESSES, choose_cache, given_cache, ranks, read_memory, weight_bytes
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory
from ropeswitch.server.start.fit.sequences import Machine
from ropeswitch.server.start.fit.sequences import check as check_sequences

# vLLM's attention on CPUs requires a block size that is a multiple of this many tokens.
BLOCK = 32
# torch's variables that disable compilation.
_DISABLED = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
# Value of vLLM's optimization level and compilation mode that disables compilation.
_NONE = (0, "0")


def check(
    args: argparse.Namespace, environment: Mapping[str, str], machine: Machine, each: SequenceMemory
) -> list[str]:
    """Refuse flags that cannot work on this machine, and set KV cache memory and sequences where the user did not.

    Returns:
        The chosen sizes, as lines for the startup log.

    Raises:
        UsageError: naming the flag, its value and what to do.
    """
    if args.block_size is not None and args.block_size % BLOCK:
        raise UsageError(
            f"--block-size: {args.block_size} must be a multiple of {BLOCK} on a CPU; leave it out for the default, 128"
        )
    if compiles(args, environment):
        check_compiler(environment)
    count = ranks(args)
    if not count:
        return []
    memory, weights = read_memory(), weight_bytes(args)
    if (own := given_cache(args, memory, weights, environment)) is not None:
        return check_sequences(args, machine, memory, each, weights + own)
    # Refuses weights that leave no room; the size is chosen again below, when the sequences are known.
    choose_cache(args, memory, weights, 0)
    # The cache counts as half of the memory that is left for it and the sequences.
    cache = max(memory.free - weights - PROCESSES, 0) // 2
    lines = check_sequences(args, machine, memory, each, weights + PROCESSES + cache)
    reserved = each.host_bytes(args.max_num_seqs or machine.sequences) * count
    return lines + choose_cache(args, memory, weights, reserved)


def check_compiler(environment: Mapping[str, str]) -> None:
    """Refuse to start if torch.compile's C++ compiler or Python.h is missing.

    Raises:
        UsageError: naming both remedies.
    """
    compiler, header = environment.get("CXX", "g++"), Path(get_path("include"), "Python.h")
    missing = f"Python's headers: there is no {header}", "Python's development package (Debian: python3-dev)"
    if shutil.which(compiler, path=environment.get("PATH")) is None:
        missing = f"{'CXX' if 'CXX' in environment else 'C++ compiler'}: {compiler!r} was not found", "g++"
    elif header.exists():
        return
    raise UsageError(
        f"{missing[0]}, and torch.compile needs it on a CPU; install {missing[1]}, or start with --enforce-eager, which "
        "skips compilation and is slower"
    )


def compiles(args: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether vLLM will compile the model for a CPU with these flags and this environment."""
    config = args.compilation_config
    mode = config.get("mode") if isinstance(config, dict) else getattr(config, "mode", None)
    return not (
        any(environment.get(name) == "1" for name in _DISABLED)
        or args.enforce_eager
        or args.optimization_level in _NONE
        or mode in _NONE
    )
