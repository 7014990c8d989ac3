"""Times the rotation of one whole step: ours against stock vLLM's LongRoPE module, alternating in one run.

Ours fills the step's rows and applies them in 32 layers; stock looks cos and sin up and applies them in each of 32 layers.
With ``--device cuda`` steps are replayed from CUDA graphs, vLLM's CUDA kernel is a third side, and the bound is the time to
move the bytes at the speed of a copy. Each side is compared with float64 before it is timed.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from vllm import _custom_ops
from vllm.config import DeviceConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.kernels.reference import apply_rows_reference, fill_rows_reference
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.triton.part import kernels

LAYERS = 32
# Layers per compiled graph. On GPUs one, as between two attentions in vLLM; on CPUs calls of many graphs would be the cost,
# and all 32 in one take minutes to compile.
GRAPH = {"cpu": 8, "cuda": 1}
WINDOW, MAXIMUM, THETA, FIRST = 4096, 131072, 10000.0, 20000
# Loose: stock rounds to bfloat16 several times and computes its angles in float32.
TOLERANCE = 0.1
COPY_BYTES = 1 << 30

Pair = tuple[torch.Tensor, torch.Tensor]
# Rotates queries and keys, maybe in place.
Rotate = Callable[[torch.Tensor, torch.Tensor], Pair]
# Rotates every layer and returns each layer's pair.
Step = Callable[[], list[Pair]]


@dataclass(frozen=True)
class Shape:
    """A model's attention: heads, values per head, and how many of them are rotated."""

    name: str
    query_heads: int
    key_heads: int
    head: int
    rotary_dim: int

    def bytes_moved(self, tokens: int, layers: int, value_bytes: int) -> int:
        """Return the least bytes that a step moves: rows written, then per layer rows read and values read and written."""
        row = 4 * self.rotary_dim
        rotated = 2 * value_bytes * (self.query_heads + self.key_heads) * self.rotary_dim
        return tokens * (row + layers * (row + rotated))


MISTRAL, PHI_4_MINI = Shape("Mistral-7B", 32, 8, 128, 128), Shape("Phi-4-mini", 24, 8, 128, 96)


@dataclass(frozen=True)
class Case:
    """One line of the table: a step of this many tokens, whose layers are compiled or not."""

    shape: Shape
    dtype: torch.dtype
    compiled: bool
    tokens: int


def cases(device: str) -> list[Case]:
    """Return every line of the table."""
    on_cpu = device == "cpu"
    shapes, sizes = ((MISTRAL,), (1, 64, 2048)) if on_cpu else ((MISTRAL, PHI_4_MINI), (1, 64, 2048, 8192))
    dtypes = (torch.float32, torch.bfloat16) if on_cpu else (torch.bfloat16,)
    return [Case(s, d, compiled, n) for s in shapes for d in dtypes for compiled in (False, True) for n in sizes]


def steps(case: Case, device: torch.device, layers: int = LAYERS) -> dict[str, Step]:
    """Return each side's step, by name. Each layer has its own queries and keys, so that none is warm in a cache.

    Raises:
        SystemExit: when a side is further than ``TOLERANCE`` from float64.
    """
    torch._dynamo.reset()
    shape, tokens = case.shape, case.tokens
    factors = Frequencies(tuple(np.geomspace(1.0, 32.0, shape.rotary_dim // 2).tolist()))
    positions = torch.arange(FIRST, FIRST + tokens, device=device)
    widths = shape.query_heads * shape.head, shape.key_heads * shape.head
    layer_values = [
        tuple(torch.randn(tokens, width, device=device).to(case.dtype) for width in widths) for _ in range(layers)
    ]
    stock = stock_module(shape, factors, case.dtype, device)
    rotations: dict[str, Rotate] = {"stock": lambda query, key: stock(positions, query, key)}
    if device.type == "cuda" and not case.compiled:
        table = stock.long_short_cos_sin_cache[WINDOW:].contiguous()

        def by_kernel(query: torch.Tensor, key: torch.Tensor) -> Pair:
            _custom_ops.rotary_embedding(positions, query, key, shape.head, table, True)
            return query, key

        rotations["vLLM's kernel"] = by_kernel
    fill, rotate = ours(shape, factors, positions)
    found = {"ours": every_layer(rotate, layer_values, case.compiled, fill)}
    found |= {name: every_layer(way, layer_values, case.compiled) for name, way in rotations.items()}
    for name, step in found.items():
        if not (error := worst_error(step, case, factors, positions, layer_values)) < TOLERANCE:
            raise SystemExit(f"bench: {name} is off by {error} with {shape.name} and {tokens} tokens: not timed")
    return found


def ours(shape: Shape, factors: Frequencies, positions: torch.Tensor) -> tuple[Callable[[], None], Rotate]:
    """Return what fills the step's rows, and what rotates a layer by them."""
    device, tokens = positions.device, len(positions)
    module = LadderRotaryEmbedding(shape.head, Rotation(THETA, shape.rotary_dim), True)
    module.rows = torch.zeros(tokens, shape.rotary_dim, device=device)
    numbers = torch.arange(tokens, device=device)
    tables = build_tables(THETA, shape.rotary_dim, (Frequencies((1.0,) * len(factors.factors)), factors), MAXIMUM)
    on_gpu = kernels(device)
    if on_gpu is None:
        filler, token_sets = ExactRows(tables), torch.ones(tokens, dtype=torch.int64)

        def fill() -> None:
            filler.fill(module.rows, positions, token_sets)
    else:
        module.rotate, write = on_gpu.rotate, on_gpu.filler(tables, device)
        request_sets = torch.ones(1, dtype=torch.int64, device=device)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)

        def fill() -> None:
            write(module.rows, positions, request_sets, starts)

    return fill, lambda query, key: module(numbers, query, key)


def stock_module(shape: Shape, factors: Frequencies, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """Return stock vLLM's LongRoPE module without a scale, so that values rotated in place many times do not grow."""
    config = VllmConfig(device_config=DeviceConfig(device.type))
    config.model_config = ModelConfig.__new__(ModelConfig)
    config.model_config.max_model_len = MAXIMUM
    long = list(factors.factors)
    with set_current_vllm_config(config, check_compile=False):
        return Phi3LongRoPEScaledRotaryEmbedding(
            shape.head, shape.rotary_dim, MAXIMUM, WINDOW, THETA, True, dtype,
            short_factor=[1.0] * len(long), long_factor=long, short_mscale=1.0, long_mscale=1.0,
        ).to(device)  # fmt: skip


def every_layer(
    rotate: Rotate, values: Sequence[Sequence[torch.Tensor]], compiled: bool, fill: Callable[[], None] | None = None
) -> Step:
    """Return a step that fills its rows, if it has any, and rotates every layer."""

    def layers(queries: list[torch.Tensor], keys: list[torch.Tensor]) -> list[Pair]:
        return [rotate(query, key) for query, key in zip(queries, keys, strict=True)]

    call = torch.compile(layers, dynamic=False) if compiled else layers
    graph = GRAPH[values[0][0].device.type]

    def step() -> list[Pair]:
        if fill is not None:
            fill()
        rotated: list[Pair] = []
        for first in range(0, len(values), graph):
            queries, keys = zip(*values[first : first + graph], strict=True)
            rotated += call(list(queries), list(keys))
        return rotated

    return step


def worst_error(
    step: Step, case: Case, factors: Frequencies, positions: torch.Tensor, values: Sequence[Sequence[torch.Tensor]]
) -> float:
    """Return the largest absolute error against float64, over 16 tokens at each end, in the first and the last layer."""
    chosen = sorted({*range(case.tokens)[:16], *range(case.tokens)[-16:]})
    before = [[part[chosen].cpu() for part in values[layer]] for layer in (0, -1)]
    rotated = step()
    places = positions.cpu().numpy()[chosen]
    rows = fill_rows_reference(places, np.zeros_like(places), THETA, case.shape.rotary_dim, (factors,))
    return max(
        float((got[chosen].cpu().double() - apply_rows_reference(rows, part, case.shape.head, True)).abs().max())
        for layer, parts in zip((0, -1), before, strict=True)
        for part, got in zip(parts, rotated[layer], strict=True)
    )


def replay(step: Step) -> Callable[[], object]:
    """Capture a step that has run before as a CUDA graph and return its replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def alternate(
    calls: Sequence[Callable[[], object]], wait: Callable[[], None], seconds: float, rounds: int
) -> list[float]:
    """Return each call's milliseconds: medians of ``rounds``, in which they take turns."""
    start = time.perf_counter()
    for call in calls:
        call()
    wait()
    inner = max(1, int(seconds / rounds / (time.perf_counter() - start)))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, measured in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(inner):
                call()
            wait()
            measured.append((time.perf_counter() - start) / inner * 1e3)
    return [statistics.median(measured) for measured in times]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each side (default: %(default)s)")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("bench: --device cuda: needs a CUDA GPU, but torch finds none", file=sys.stderr)
        return 2
    device, wait, copy_ms = torch.device(options.device), torch.cuda.synchronize if on_gpu else lambda: None, 0.0
    print(f"rotation of one step, {LAYERS} layers; ours/stock below 1 is faster than stock", flush=True)
    with torch.inference_mode():
        if on_gpu:
            source, target = (torch.ones(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
            (copy_ms,) = alternate([lambda: target.copy_(source)], wait, 1.0, options.rounds)
            speed = 2 * COPY_BYTES / copy_ms / 1e9
            print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a large copy moves {speed:.2f} TB/s")
        for case in cases(options.device):
            found = steps(case, device)
            calls = [replay(step) if on_gpu else step for step in found.values()]
            times = dict(zip(found, alternate(calls, wait, 2.0, options.rounds), strict=True))
            mode = "compiled" if case.compiled else "eager"
            line = f"{case.shape.name} {mode:8} {str(case.dtype)[6:]:8} {case.tokens:5} tokens: "
            line += ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items())
            line += f", ours/stock {times['ours'] / times['stock']:.2f}"
            if on_gpu:
                moved = case.shape.bytes_moved(case.tokens, LAYERS, case.dtype.itemsize)
                line += f", bound {copy_ms * moved / (2 * COPY_BYTES):.4f} ms"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
