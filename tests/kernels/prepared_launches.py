"""Rotates with the Triton kernel for a simulated GPU and prints the arguments of Triton's launcher.

Run it in a process of its own, outside Triton's interpreter: ``python -m tests.kernels.prepared_launches``.
"""

import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from triton.runtime.driver import driver

from ropeswitch.kernels import apply_rows_triton, fill_rows_triton
from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.apply_rows_triton import apply_rows_kernel, apply_rows_triton_
from ropeswitch.kernels.triton_launch import check
from tests.kernels.compile_ahead import NoGPU

HEAD, TOKENS = 64, 3
launches: list[list[Any]] = []
by_triton: list[str] = []
# Memory of results, so that no address comes twice.
kept: list[object] = []


class Recorder:
    """In the place of Triton's launcher."""

    def __init__(self, src: Any, metadata: Any) -> None: ...

    def __call__(self, *args: Any) -> None:
        launches.append([arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args])


class Device(NoGPU):
    """Loads nothing and launches nothing."""

    launcher_cls = Recorder

    def __init__(self) -> None:
        super().__init__(90)
        self.functions = 0
        self.utils = SimpleNamespace(
            load_binary=self.load,
            unload_module=lambda _: None,
            get_device_properties=lambda _: {"max_shared_mem": 1 << 20},
        )

    def load(self, *_: Any) -> tuple[str, int, int, int, int]:
        self.functions += 1
        return "module", self.functions, 0, 0, 1024


def recorded(launch: Callable[[], object]) -> dict[str, Any]:
    """What one launch was given, and whether Triton or a prepared launch gave it."""
    launches.clear(), by_triton.clear()
    kept.append(launch())
    [(programs, _, _, stream, function, _, _, _, _, *arguments)] = launches
    return {"launch": [programs, stream, function, *arguments], "by_triton": bool(by_triton)}


def fills() -> Iterator[int]:
    """The kernels that fill rows from the tables of a start and of later ladders, in steps of few and of many requests."""
    for sets, start_tokens, end in ((2, 0, 8192), (1, 0, 4096), (16, 0, 65536), (3, 128, 8192)):
        entries = [Frequencies((1.0,) * (HEAD // 2), start_tokens=start_tokens)] * sets
        tables = fill_rows_triton.DeviceTables.from_tables(build_tables(1e4, HEAD, tuple(entries), end), "cpu")
        for requests in (1, 2, 16):
            launches.clear()
            positions, request_sets = torch.arange(requests), torch.zeros(requests, dtype=torch.int64)
            starts = torch.arange(requests + 1, dtype=torch.int32)
            fill_rows_triton.fill_rows_triton(torch.zeros(64, HEAD), positions, request_sets, starts, tables)
            yield launches[0][4]


def main() -> None:
    driver.set_active(Device())
    upstream = apply_rows_kernel.run

    def run(*args: Any, **kwargs: Any) -> Any:
        by_triton.append("launch")
        return upstream(*args, **kwargs)

    apply_rows_kernel.run = run
    # All but the refusal of CPUs.
    apply_rows_triton.check = fill_rows_triton.check = lambda kernel, *rest: check(None, *rest)
    rows, numbers = torch.zeros(64, HEAD), torch.arange(64)

    def projected(
        tokens: int = TOKENS, dtype: torch.dtype = torch.bfloat16, shift: int = 0, neox: bool = True
    ) -> Callable[[], object]:
        values = torch.zeros(tokens * 4 * HEAD + shift, dtype=dtype)[shift:].view(tokens, 4 * HEAD)
        query, key, _ = values.split([2 * HEAD, HEAD, HEAD], dim=-1)
        return lambda: apply_rows_triton_(query, key, rows, numbers[:tokens], HEAD, neox)

    query, key = torch.zeros(TOKENS, 2 * HEAD).bfloat16(), torch.zeros(TOKENS, HEAD).bfloat16()
    good = {
        "query": query, "key": key, "rows": rows, "row_numbers": numbers[:TOKENS], "head_size": HEAD, "neox": True,
    }  # fmt: skip
    # All of them live to the end, so that no address comes twice.
    launched = {
        "slices": projected(),
        "one token": projected(1),
        "float32": projected(dtype=torch.float32),
        "interleaved": projected(neox=False),
        "unaligned": projected(shift=1),
        "contiguous": lambda: apply_rows_triton_(**good),
        "without keys": lambda: apply_rows_triton_(**good | {"key": None}),
        "new tensors": lambda: torch.ops.ropeswitch.apply_rows(*good.values()),
    }
    found = {name: [recorded(launch), recorded(launch)] for name, launch in launched.items()}
    found["other memory"] = [recorded(projected())]
    refused = []
    for name, bad in {
        "query": query.double(),
        "key": key.float(),
        "key ": torch.zeros(HEAD, TOKENS).bfloat16().T,
        "rows": rows.double(),
        "rows ": torch.zeros(HEAD, 64).T,
        "row_numbers": numbers[:TOKENS].int(),
        "row_numbers ": torch.arange(6)[::2],
    }.items():
        try:
            apply_rows_triton_(**good | {name.strip(): bad})
        except (TypeError, ValueError) as error:
            refused.append(f"{name.strip()}: {error}")
    apply_rows_triton.MOST_PREPARED = len(apply_rows_triton._PREPARED)
    projected(5)()
    kept = len(apply_rows_triton._PREPARED)
    json.dump({"found": found, "refused": refused, "kept": kept, "fills": [*fills()]}, sys.stdout)


if __name__ == "__main__":
    main()
