"""Compiles the Triton ops as their own host code launches them, for a GPU that need not be there; prints what came out.

``python -m tests.kernels.compile_ahead 80`` compiles for compute capability 8.0. Run it in a process of its own, outside
Triton's interpreter.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.driver import driver

from ropeswitch.kernels import apply_rows_triton, fill_rows_triton
from ropeswitch.kernels.angles import Frequencies, build_tables

TOKENS = 32


class NoGPU(CudaDriver):
    """Says which GPU to compile for, and has none."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(launch: Callable[[], object]) -> Any:
    """The one kernel that ``launch`` would have run."""
    kernels = []

    def compile_only(self: Any, grid: object) -> Callable[..., None]:
        return lambda *args, **options: kernels.append(self.run(*args, grid=grid, warmup=True, **options))

    for module in (apply_rows_triton, fill_rows_triton):
        module.check = lambda *_: None
    triton.JITFunction.__getitem__ = compile_only
    launch()
    [kernel] = kernels
    return kernel


def projection(heads: int, key_heads: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    both = torch.zeros(TOKENS, (heads + 2 * key_heads) * size, dtype=dtype)
    return both.split([heads * size, key_heads * size, key_heads * size], dim=-1)


def apply(heads: int, key_heads: int, size: int, rotary: int, dtype: torch.dtype, neox: bool, new: bool) -> Any:
    query, key, _ = projection(heads, key_heads, size, dtype)
    op = apply_rows_triton.apply_rows_triton if new else apply_rows_triton.apply_rows_triton_
    rows, numbers = torch.zeros(TOKENS, rotary), torch.arange(TOKENS)
    return compiled(lambda: op(query, key if key_heads else None, rows, numbers, size, neox))


def fill(pairs: int, start_tokens: int) -> Any:
    entry = Frequencies(tuple(np.linspace(1, 9, pairs)), start_tokens=start_tokens)
    tables = fill_rows_triton.DeviceTables.from_tables(build_tables(1e4, 2 * pairs, (entry, entry), 8192), "cpu")
    four = torch.arange(4)
    starts = torch.arange(5, dtype=torch.int32)
    return compiled(
        lambda: fill_rows_triton.fill_rows_triton(
            torch.zeros(TOKENS, 2 * pairs), torch.arange(TOKENS), four, starts, tables
        )
    )


def report(kernel: Any, capability: int) -> dict[str, Any]:
    """Loads and stores by width, spilled bytes and registers of a compiled kernel."""
    ptx = kernel.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(ptx)
        source.flush()
        # sm_90a: what Triton itself asks for on Hopper.
        arch = re.search(r"\.target (sm_\w+)", ptx)
        assert arch is not None and arch[1].startswith(f"sm_{capability}")
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={arch[1]}", source.name, "-o", "/dev/null"]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = sum(map(int, re.findall(r"(\d+) bytes (?:spill stores|spill loads|stack frame)", log)))
    used = re.search(r"Used (\d+) registers", log)
    assert used is not None
    return {
        "cubin_is_elf": kernel.asm["cubin"][:4] == b"\x7fELF",
        "spilled_bytes": spilled,
        "registers": int(used[1]),
        "local": ".local" in ptx,
        "loads": sorted(re.findall(r"ld\.global[.\w:]*?(?:\.(v\d))?\.(\w+)", ptx)),
        "stores": sorted(re.findall(r"st\.global[.\w:]*?(?:\.(v\d))?\.(\w+)", ptx)),
    }


def main(capability: int) -> None:
    driver.set_active(NoGPU(capability))
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    kernels = {
        "llama2-7b": apply(32, 32, 128, 128, bf16, True, False),
        "mistral-7b": apply(32, 8, 128, 128, bf16, True, False),
        "mistral-7b new": apply(32, 8, 128, 128, bf16, True, True),
        "phi-4-mini": apply(24, 8, 128, 96, bf16, True, False),
        "phi-4-mini new": apply(24, 8, 128, 96, bf16, True, True),
        "phi-3-mini fp16": apply(32, 32, 96, 96, fp16, True, False),
        "head 80 fp32": apply(32, 32, 80, 32, fp32, True, False),
        "head 256": apply(16, 8, 256, 256, bf16, True, False),
        "interleaved": apply(32, 8, 128, 128, bf16, False, False),
        "interleaved partial new": apply(32, 8, 128, 64, bf16, False, True),
        "one key head": apply(4, 1, 128, 128, bf16, True, False),
        "no key": apply(32, 0, 128, 128, bf16, True, False),
        "no key new": apply(32, 0, 128, 64, bf16, True, True),
        "fill": fill(64, 0),
        "fill start tokens": fill(48, 128),
    }
    json.dump({name: report(kernel, capability) for name, kernel in kernels.items()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
