"""Memory needs and capacity of a layout, and lower bounds on the time of a prompt and of a token.

A bound is the time of the arithmetic or of the bytes at the datasheet's peak rates. docs/planning.md derives each formula.
"""

from dataclasses import dataclass

from ropeswitch.deploy.plan.gpus import Gpu
from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.deploy.plan.model_shape import DTYPE_BYTES, ModelShape
from ropeswitch.deploy.plan.weights import active_weights, layer_weights, stage_layers, stage_weights

GIB = 1 << 30
# Tokens of a KV block: vLLM's default on CUDA (`CacheConfig.DEFAULT_BLOCK_SIZE`).
BLOCK_SIZE = 16
# All-reduces per layer: after attention and after the MLP.
ALL_REDUCES = 2


@dataclass(frozen=True)
class Workload:
    """Requirements that a layout is planned for."""

    max_model_len: int  # tokens
    kv_bytes: int  # of one stored key or value
    memory_utilization: float  # share of a GPU's memory that vLLM may use, above 0 and up to 1
    reserve_gib: float  # assumed part of that share for activations, CUDA graphs, NCCL and the CUDA context, per GPU


@dataclass(frozen=True)
class Memory:
    """Memory of a replica's fullest GPU in bytes, and the replica's capacity."""

    weights: int
    kv_per_token: float  # fractional, because it is an average under DCP
    kv_per_sequence: int  # at full length, in whole blocks
    kv_available: int
    sequences: int  # at full length, that one replica holds at once
    capacity: int  # tokens of the longest sequence that fits, regardless of max_model_len
    longest: int  # the same, at most max_model_len


@dataclass(frozen=True)
class Bounds:
    """Lower bounds in seconds for one full-length sequence alone on one replica: to its first token, and between tokens."""

    first_token: float
    next_token: float


def token_bytes(shape: ModelShape, layout: Layout, layers: int, kv_bytes: int) -> int:
    """Return a rank's KV bytes per token that it stores, in ``layers`` layers: keys and values of its KV heads."""
    return layers * 2 * max(1, shape.kv_heads // layout.tensor) * shape.head_dim * kv_bytes


def blocks_per_sequence(shape: ModelShape, layout: Layout, tokens: int) -> int:
    """Return a rank's KV blocks for a sequence of ``tokens`` tokens, at most the sliding window.

    As ``max_memory_usage_bytes`` of vLLM's ``FullAttentionSpec`` (divided by DCP), or ``SlidingWindowSpec`` (a block more).
    """
    own = -(-tokens // layout.decode_context)
    return -(-own // BLOCK_SIZE) + (shape.sliding_window is not None)


def memory(shape: ModelShape, layout: Layout, gpu: Gpu, load: Workload) -> Memory:
    """Return the fullest rank's memory by vLLM's rule: the scarcest stage limits the blocks, and one block is never used."""
    budget = int(gpu.memory_gib * GIB * load.memory_utilization) - int(load.reserve_gib * GIB)
    needed = blocks_per_sequence(shape, layout, load.max_model_len)
    weights, available, blocks, pages = [], [], [], []
    for stage, layers in enumerate(stage_layers(shape.layers, layout.pipeline)):
        weights.append(stage_weights(shape, layout.tensor, layout.pipeline, stage).bytes(shape))
        available.append(max(0, budget - weights[-1]))
        pages.append(BLOCK_SIZE * token_bytes(shape, layout, layers, load.kv_bytes))
        blocks.append(available[-1] // pages[-1])
    # vLLM's null block (`BlockPool`), which `get_kv_cache_configs` subtracts before its check.
    usable = max(0, min(blocks) - 1)
    capacity = max(0, usable - (shape.sliding_window is not None)) * BLOCK_SIZE * layout.decode_context
    return Memory(
        weights=max(weights),
        kv_per_token=max(pages) / BLOCK_SIZE / layout.decode_context,
        kv_per_sequence=needed * max(pages),
        kv_available=available[blocks.index(min(blocks))],
        sequences=usable // needed,
        capacity=capacity,
        longest=min(capacity, load.max_model_len),
    )


def prefill_flops(shape: ModelShape, tokens: int) -> int:
    """Return a prefill's operations: 2 per weight and token, 4 per pair of tokens and value of a head, one output row."""
    layer = layer_weights(shape, 1, shape.active_experts).linear + shape.hidden * shape.experts
    linear = 2 * shape.layers * layer * tokens
    attention = shape.layers * 4 * shape.heads * shape.head_dim * (tokens * (tokens + 1) // 2)
    return linear + attention + 2 * shape.hidden * shape.vocab


def bounds(shape: ModelShape, layout: Layout, gpu: Gpu, load: Workload) -> Bounds:
    """Return lower bounds on time for one full-length sequence, alone on one replica."""
    tokens, tp = load.max_model_len, layout.tensor
    # The 8-bit peak if weights or KV are 8-bit, so that the bound remains valid.
    eight_bits = (shape.weights.is_fp8 or load.kv_bytes == 1) and gpu.fp8_tflops
    peak = max(gpu.bf16_tflops, gpu.fp8_tflops if eight_bits else 0) * 1e12
    bandwidth = gpu.memory_gb_per_s * 1e9
    weights = active_weights(shape, tp).bytes(shape)
    hidden_bytes = shape.layers * ALL_REDUCES * tokens * shape.hidden * DTYPE_BYTES
    # Compute, as stages work on different chunks at once; one read of the weights; and what the all-reduces bring a GPU.
    first = max(
        prefill_flops(shape, tokens) / (layout.gpus * peak),
        weights / layout.pipeline / bandwidth,
        hidden_bytes * (tp - 1) / tp / layout.pipeline / (gpu.link_gb_per_s * 1e9),
    )
    kv = token_bytes(shape, layout, shape.layers, load.kv_bytes) * tokens / layout.decode_context
    flops = prefill_flops(shape, tokens) - prefill_flops(shape, tokens - 1) + 2 * shape.hidden * shape.vocab
    # Stages work one after another, so PP does not shorten the next token.
    return Bounds(first, max((weights + kv) / bandwidth, flops / (tp * peak)))
