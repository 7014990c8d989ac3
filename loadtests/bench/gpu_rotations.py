"""GPU implementations that rotate a step's queries and keys, each as one function over all layers.

All rotate the same slices of the same projections by the same factors: ours, stock vLLM's LongRoPE module, vLLM's CUDA
kernel, and those of FlashInfer and flash-attn where installed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.apply_rows_triton import apply_rows_triton, apply_rows_triton_
from ropeswitch.kernels.fill_rows_triton import DeviceTables, fill_rows_triton
from ropeswitch.kernels.reference import apply_rows_reference, fill_rows_reference

WINDOW, MAXIMUM, THETA, FIRST = 4096, 131072, 10000.0, 20000
# Loose, because other implementations round to bf16 several times and compute angles in float32.
TOLERANCE = 0.1

Rotated = tuple[torch.Tensor, torch.Tensor]
# Rotates every layer; returns the rotated queries and keys of the first and the last.
Step = Callable[[], tuple[Rotated, Rotated]]
Rotate = Callable[[torch.Tensor, torch.Tensor], Rotated]


@dataclass(frozen=True)
class Model:
    """The shape of a model's attention."""

    name: str
    query_heads: int
    key_heads: int
    head_size: int
    rotary_dim: int

    @property
    def widths(self) -> list[int]:
        """Widths of one token's queries, keys and values, in elements."""
        return [heads * self.head_size for heads in (self.query_heads, self.key_heads, self.key_heads)]

    def bytes_moved(self, tokens: int, layers: int, value_bytes: int = 2) -> int:
        """Return the minimum bytes a step moves: rows written once, then per layer rows read and values read and written."""
        row = 4 * self.rotary_dim
        rotated = 2 * value_bytes * (self.query_heads + self.key_heads) * self.rotary_dim
        return tokens * (row + layers * (row + rotated))


@dataclass(frozen=True)
class Work:
    """One step: positions and one projection per layer, each in its own memory, so that none is warm in the cache."""

    model: Model
    positions: torch.Tensor
    projections: list[torch.Tensor]
    pristine: Rotated = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pristine", (self.projections[0].clone(), self.projections[-1].clone()))

    @classmethod
    def make(cls, model: Model, tokens: int, layers: int, device: torch.device, dtype: torch.dtype) -> "Work":
        positions = torch.arange(FIRST, FIRST + tokens, device=device)
        shape = tokens, sum(model.widths)
        return cls(model, positions, [torch.randn(shape, device=device, dtype=dtype) for _ in range(layers)])

    def every_layer(self, rotate: Rotate) -> tuple[Rotated, Rotated]:
        rotated = []
        for number, projection in enumerate(self.projections):
            query, key, _ = projection.split(self.model.widths, dim=-1)
            new = rotate(query, key)
            if number in (0, len(self.projections) - 1):
                rotated.append(new)
        return rotated[0], rotated[-1]

    def worst_error(self, step: Step) -> float:
        """Return the largest absolute error against float64, over 16 tokens at each end, in the first and last layer."""
        for projection, values in zip((self.projections[0], self.projections[-1]), self.pristine, strict=True):
            projection.copy_(values)
        rotated = step()
        chosen = sorted(
            {*range(min(16, len(self.positions))), *range(max(0, len(self.positions) - 16), len(self.positions))}
        )
        places = self.positions.cpu().numpy()[chosen]
        sets = (long_factors(self.model),)
        rows = fill_rows_reference(places, np.zeros_like(places), THETA, self.model.rotary_dim, sets)
        worst = 0.0
        for projection, pair in zip(self.pristine, rotated, strict=True):
            for values, got in zip(projection[chosen].cpu().split(self.model.widths, dim=-1), pair, strict=False):
                expected = apply_rows_reference(rows, values, self.model.head_size, True)
                worst = max(
                    worst, float((got.reshape(len(self.positions), -1)[chosen].cpu().double() - expected).abs().max())
                )
        return worst


def long_factors(model: Model) -> Frequencies:
    return Frequencies(tuple(np.geomspace(1.0, 32.0, model.rotary_dim // 2).tolist()))


def stock_module(model: Model, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """Return stock vLLM's LongRoPE module without a scale, so that values rotated in place many times do not grow."""
    from vllm.config import DeviceConfig, ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import Phi3LongRoPEScaledRotaryEmbedding

    config = VllmConfig(device_config=DeviceConfig(device.type))
    config.model_config = ModelConfig.__new__(ModelConfig)
    config.model_config.max_model_len = MAXIMUM
    factors = list(long_factors(model).factors)
    with set_current_vllm_config(config, check_compile=False):
        module = Phi3LongRoPEScaledRotaryEmbedding(
            model.head_size, model.rotary_dim, MAXIMUM, WINDOW, THETA, True, dtype,
            short_factor=factors, long_factor=factors, short_mscale=1.0, long_mscale=1.0,
        )  # fmt: skip
    return module.to(device)


def ours(work: Work, in_place: bool) -> Step:
    """Return a step that fills its rows, then rotates every layer."""
    model, device, tokens = work.model, work.positions.device, len(work.positions)
    tables = DeviceTables.from_tables(build_tables(THETA, model.rotary_dim, (long_factors(model),), MAXIMUM), device)
    rows = torch.zeros(tokens, model.rotary_dim, device=device)
    row_numbers = torch.arange(tokens, device=device)
    request_sets = torch.zeros(1, dtype=torch.int32, device=device)
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)

    def rotate(query: torch.Tensor, key: torch.Tensor) -> Rotated:
        if in_place:
            apply_rows_triton_(query, key, rows, row_numbers, model.head_size, True)
            return query, key
        new_query, new_key = apply_rows_triton(query, key, rows, row_numbers, model.head_size, True)
        assert new_key is not None
        return new_query, new_key

    def step() -> tuple[Rotated, Rotated]:
        fill_rows_triton(rows, work.positions, request_sets, starts, tables)
        return work.every_layer(rotate)

    return step


def stock(work: Work, compiled: bool) -> Step:
    """Return a step that calls stock's module once per layer; compiled as in vLLM, with one graph that every layer runs."""
    module, positions = stock_module(work.model, work.projections[0].dtype, work.positions.device), work.positions

    def rotate(query: torch.Tensor, key: torch.Tensor) -> Rotated:
        return module(positions, query, key)

    call = torch.compile(rotate, fullgraph=True, dynamic=False) if compiled else rotate
    return lambda: work.every_layer(call)


def vllm_kernel(work: Work) -> Step:
    """Return a step with ``vllm._custom_ops.rotary_embedding``, in place, from a table in the model's dtype."""
    from vllm import _custom_ops as ops

    module = stock_module(work.model, work.projections[0].dtype, work.positions.device)
    table = module.long_short_cos_sin_cache[WINDOW:].contiguous()

    def rotate(query: torch.Tensor, key: torch.Tensor) -> Rotated:
        ops.rotary_embedding(work.positions, query, key, work.model.head_size, table, True)
        return query, key

    return lambda: work.every_layer(rotate)


def flashinfer_kernel(work: Work) -> Step:
    """Return a step with ``flashinfer.rope.apply_rope_with_cos_sin_cache_inplace``, from a float32 table."""
    apply = import_module("flashinfer.rope").apply_rope_with_cos_sin_cache_inplace
    table = (
        stock_module(work.model, torch.float32, work.positions.device).long_short_cos_sin_cache[WINDOW:].contiguous()
    )

    def rotate(query: torch.Tensor, key: torch.Tensor) -> Rotated:
        apply(work.positions, query, key, work.model.head_size, table, True)
        return query, key

    return lambda: work.every_layer(rotate)


def flash_attn_kernel(work: Work) -> Step:
    """Return a step with flash-attn's ``apply_rotary_emb``, in place; cos and sin are gathered once per step."""
    apply = import_module(f"{flash_attn_package()}.layers.rotary").apply_rotary_emb
    module = stock_module(work.model, work.projections[0].dtype, work.positions.device)
    table = module.long_short_cos_sin_cache[WINDOW:].contiguous()

    def step() -> tuple[Rotated, Rotated]:
        cos, sin = (half.contiguous() for half in table.index_select(0, work.positions).chunk(2, dim=-1))

        def rotate(query: torch.Tensor, key: torch.Tensor) -> Rotated:
            for values in (query, key):
                apply(values.unflatten(1, (-1, work.model.head_size))[None], cos, sin, interleaved=False, inplace=True)
            return query, key

        return work.every_layer(rotate)

    return step


def flash_attn_package() -> str | None:
    """Return the name of flash-attn's package, or of its part in vLLM's CUDA build; None if neither is installed."""
    if find_spec("flash_attn"):
        return "flash_attn"
    try:
        return "vllm.vllm_flash_attn" if find_spec("vllm.vllm_flash_attn.layers") else None
    except ImportError:  # the CPU build bundles a part that cannot be imported
        return None


def rotations() -> dict[str, Callable[[Work], Step] | None]:
    """Return every rotation by name; None for one that is not installed."""
    return {
        "ours, in place": lambda work: ours(work, in_place=True),
        "ours, new tensors": lambda work: ours(work, in_place=False),
        "stock": lambda work: stock(work, compiled=False),
        "stock, compiled": lambda work: stock(work, compiled=True),
        "vllm kernel": vllm_kernel,
        "flashinfer": flashinfer_kernel if find_spec("flashinfer") else None,
        "flash-attn": flash_attn_kernel if flash_attn_package() else None,
    }
