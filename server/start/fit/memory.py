"""KV cache memory on CPUs: fits the default into the free memory, and refuses sizes that do not fit."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start.model_folder import expanded

VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
GIB = 1 << 30
# vLLM's default; any other value is the user's choice.
DEFAULT_UTILIZATION = 0.92
# Bytes that a server's processes take in addition to weights and KV cache, and the smallest KV cache to choose.
PROCESSES = 2 * GIB
LEAST = 64 << 20
_FLAG = "--kv-cache-memory-bytes"
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Memory:
    """Memory of the machine, or of the container, in bytes: all of it, and what a new process can get now."""

    total: int
    free: int


def read_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> Memory:
    """Return the memory that this process can get, within its container's limit."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    limit = cgroup / "memory.max"
    if limit.exists() and (most := limit.read_text(encoding="ascii").strip()) != "max":
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        used = int((cgroup / "memory.current").read_text(encoding="ascii")) - int(stat["inactive_file"])
        total, free = min(total, int(most)), min(free, int(most) - used)
    return Memory(total, max(free, 0))


def weight_bytes(args: argparse.Namespace) -> int:
    """Return the bytes of weights that this machine's engines load; 0 if the weights are not on this machine yet."""
    folder = _model_folder(args)
    if folder is None:
        return 0
    for ending in ("*.safetensors", "*.bin", "*.pt"):
        if sizes := {each.name: each.stat().st_size for each in folder.glob(ending) if each.is_file()}:
            # Mistral's models come with weights in two formats, of which one is loaded.
            once = [size for name, size in sizes.items() if not name.startswith("consolidated")] or sizes.values()
            # Each engine loads a copy, but data parallel engines split experts.
            config = folder / "config.json"
            splits = config.exists() and "experts" in config.read_text(encoding="utf-8")
            return sum(once) * (1 if splits else engines(args))
    return 0


def _model_folder(args: argparse.Namespace) -> Path | None:
    """Return the model's folder, or its snapshot in the hub's cache; None for neither."""
    folder = expanded(args.model)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(
            args.model, revision=args.revision, cache_dir=args.download_dir, local_files_only=True
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return Path(snapshot)


def given_cache(args: argparse.Namespace, memory: Memory, weights: int, environment: Mapping[str, str]) -> int | None:
    """Return the bytes of this machine's KV caches if the user set their size; None if not.

    Raises:
        UsageError: for a size that does not fit beside the weights.
    """
    name, size, count = _FLAG, args.kv_cache_memory_bytes, ranks(args)
    # As in vLLM, the variable overrides the flag.
    if text := environment.get(VARIABLE):
        if not text.isdecimal():
            raise UsageError(f"{VARIABLE}: {text!r} must be a whole number of GiB")
        name, size = VARIABLE, int(text) * GIB
    if size is None:
        return None
    left = max(memory.free - weights, 0)
    if size * count > left:
        each = f" for each of {count} ranks" if count > 1 else ""
        raise UsageError(
            f"{name}: {gib(size)}{each} does not fit: {_free(memory, weights)}; use at most {gib(left // count)}, or stop "
            "other processes"
        )
    return int(size * count)


def choose_cache(args: argparse.Namespace, memory: Memory, weights: int, reserved: int) -> list[str]:
    """Set ``kv_cache_memory_bytes`` of a server on a CPU, where the user set no size.

    vLLM's default is 92% of the machine's memory, and vLLM does not start if less is free.

    Returns:
        The chosen size, as lines for the startup log; none for the user's own ``--gpu-memory-utilization``.

    Raises:
        UsageError: naming the free memory beside weights and ``reserved`` bytes for sequences, the size and the flag.
    """
    count = ranks(args)
    free = _free(memory, weights)
    if reserved >= LEAST:
        free += f", --max-num-seqs reserves {gib(reserved)}"
    if args.gpu_memory_utilization != DEFAULT_UTILIZATION:
        if (wanted := int(memory.total * args.gpu_memory_utilization)) > memory.free:
            raise UsageError(
                f"--gpu-memory-utilization: {args.gpu_memory_utilization:g} of the memory is {gib(wanted)}, which does not "
                f"fit: {free}; leave it out to use the free memory, or set {_FLAG}"
            )
        return []
    size = max(memory.free - weights - reserved - PROCESSES, 0) // 2 // count
    if size < LEAST:
        raise UsageError(
            f"{_FLAG}: no room for a KV cache: {free}, and the server's processes need about {gib(PROCESSES)}; stop "
            f"other processes, or set a size, such as {_FLAG} 256M"
        )
    args.kv_cache_memory_bytes = size
    each = " per rank" if count > 1 else ""
    return [f"KV cache: {gib(size)}{each}, half of the remaining memory ({free}); {_FLAG} sets another size"]


def _free(memory: Memory, weights: int) -> str:
    taken = f" and the weights take {gib(weights)}" if weights else ""
    return f"{gib(memory.free)} of {gib(memory.total)} of memory is free{taken}"


def engines(args: argparse.Namespace) -> int:
    """Return the number of data parallel engines on this machine."""
    if args.data_parallel_rank is not None:
        return 1
    engines = args.data_parallel_size if args.data_parallel_size_local is None else args.data_parallel_size_local
    return int(engines)


def ranks(args: argparse.Namespace) -> int:
    """Return the number of ranks on this machine."""
    world = args.tensor_parallel_size * args.pipeline_parallel_size
    return int(engines(args) * max(world // args.nnodes, 1))


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size >> 20} MiB"
