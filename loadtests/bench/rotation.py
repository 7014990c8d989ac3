"""Times the rotation of one whole step: ours against stock vLLM's LongRoPE module, alternating in one run.

Ours fills the step's rows and applies them in 32 layers; stock looks cos and sin up and applies them in each of 32 layers.
Both rotate the same queries and keys (32 query heads and 8 key heads of 128 values, all rotated).
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from vllm.config import DeviceConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation

LAYERS, QUERY_HEADS, KEY_HEADS, HEAD = 32, 32, 8, 128
# Layers per compiled graph: all 32 in one graph take minutes to compile.
GRAPH = 8
WINDOW, MAXIMUM, THETA = 4096, 131072, 10000.0
TOKENS = (1, 64, 2048)

Step = Callable[[], object]
Layers = Callable[[torch.Tensor, list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class Row:
    """One line of the table: median milliseconds of a step's rotation for both sides, and their ratio."""

    mode: str
    dtype: str
    tokens: int
    stock_ms: float
    ours_ms: float

    @property
    def ratio(self) -> float:
        return self.ours_ms / self.stock_ms


def measure(seconds: float = 2.0, repetitions: int = 9) -> list[Row]:
    """Time every case and return the table's lines."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for compiled in (False, True):
            for tokens in TOKENS:
                stock, ours = _steps(tokens, dtype, compiled)
                stock_ms, ours_ms = _alternate(stock, ours, seconds, repetitions)
                rows.append(Row("compiled" if compiled else "eager", str(dtype)[6:], tokens, stock_ms, ours_ms))
    return rows


def _steps(tokens: int, dtype: torch.dtype, compiled: bool) -> tuple[Step, Step]:
    torch._dynamo.reset()
    pairs = HEAD // 2
    short, long = [1.0] * pairs, np.geomspace(1.0, 32.0, pairs).tolist()
    stock_module = _stock_module(short, long, dtype)
    sets = (Frequencies(tuple(short), 1.19), Frequencies(tuple(long), 1.19))
    filler = ExactRows(build_tables(THETA, HEAD, sets, MAXIMUM))
    rows = torch.zeros(max(TOKENS), HEAD)
    our_module = LadderRotaryEmbedding(HEAD, Rotation(THETA, HEAD), True)
    our_module.rows = rows
    positions = torch.arange(20000, 20000 + tokens)
    row_numbers = torch.arange(tokens)
    token_sets = torch.ones(tokens, dtype=torch.int64)
    queries = [torch.randn(tokens, QUERY_HEADS * HEAD).to(dtype) for _ in range(LAYERS)]
    keys = [torch.randn(tokens, KEY_HEADS * HEAD).to(dtype) for _ in range(LAYERS)]
    stock_layers, our_layers = _layers(stock_module, compiled), _layers(our_module, compiled)

    def stock() -> object:
        return stock_layers(positions, queries, keys)

    def ours() -> object:
        filler.fill(rows, positions, token_sets)
        return our_layers(row_numbers, queries, keys)

    return stock, ours


def _stock_module(short: list[float], long: list[float], dtype: torch.dtype) -> torch.nn.Module:
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    config.model_config = ModelConfig.__new__(ModelConfig)
    config.model_config.max_model_len = MAXIMUM
    with set_current_vllm_config(config, check_compile=False):
        return Phi3LongRoPEScaledRotaryEmbedding(
            HEAD, HEAD, MAXIMUM, WINDOW, THETA, True, dtype, short_factor=short, long_factor=long
        )


def _layers(module: torch.nn.Module, compiled: bool) -> Layers:
    def layers(positions: torch.Tensor, queries: list[torch.Tensor], keys: list[torch.Tensor]) -> list[torch.Tensor]:
        rotated = []
        for query, key in zip(queries, keys, strict=True):
            rotated.extend(module(positions, query, key))
        return rotated

    if not compiled:
        return layers
    graph = torch.compile(layers, dynamic=False)

    def graphs(positions: torch.Tensor, queries: list[torch.Tensor], keys: list[torch.Tensor]) -> list[torch.Tensor]:
        rotated = []
        for first in range(0, LAYERS, GRAPH):
            rotated += graph(positions, queries[first : first + GRAPH], keys[first : first + GRAPH])
        return rotated

    return graphs


def _alternate(stock: Step, ours: Step, seconds: float, repetitions: int) -> tuple[float, float]:
    with torch.inference_mode():
        for step in (stock, ours):
            step()
        start = time.perf_counter()
        stock()
        ours()
        inner = max(1, int(seconds / repetitions / (time.perf_counter() - start)))
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(repetitions):
            for side, step in enumerate((stock, ours)):
                start = time.perf_counter()
                for _ in range(inner):
                    step()
                times[side].append((time.perf_counter() - start) / inner * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    print(
        f"rotation of one step, {LAYERS} layers, {QUERY_HEADS}+{KEY_HEADS} heads of {HEAD}; below 1 is faster than stock"
    )
    print(f"{'mode':9} {'dtype':9} {'tokens':>6} {'stock ms':>9} {'ours ms':>9} {'ours/stock':>10}")
    for row in measure():
        print(f"{row.mode:9} {row.dtype:9} {row.tokens:6} {row.stock_ms:9.3f} {row.ours_ms:9.3f} {row.ratio:10.2f}")


if __name__ == "__main__":
    main()
