"""Counts the parameters that a rank holds and those that one token uses, as vLLM 0.32.0 splits them.

Tensor parallel ranks divide query heads, MLP columns, the padded vocabulary, and KV heads down to one per rank
(``QKVParallelLinear``); each has all norms, routers and biases of row-parallel layers. The first pipeline stage also has the
embedding, the last the output head or a copy of a tied embedding; some of vLLM's models have both on every stage.
"""

from dataclasses import dataclass
from math import ceil

from ropeswitch.deploy.plan.model_shape import DTYPE_BYTES, ModelShape

# `vllm.model_executor.layers.vocab_parallel_embedding.DEFAULT_VOCAB_PADDING_SIZE`.
VOCAB_PADDING = 64


@dataclass(frozen=True)
class Weights:
    """Parameters of one rank."""

    linear: int  # of the linear layers of attention and MLP, which a quantized checkpoint stores in fewer bytes
    other: int  # always 16 bits

    def bytes(self, shape: ModelShape) -> int:
        return ceil(self.linear * shape.weights.bytes_per_weight) + self.other * DTYPE_BYTES


def padded_vocab(shape: ModelShape) -> int:
    return ceil(shape.vocab / VOCAB_PADDING) * VOCAB_PADDING


def stage_layers(layers: int, pipeline: int) -> tuple[int, ...]:
    """Return each stage's layers, as vLLM's ``get_pp_indices`` does: the rest goes, one each, before the last stage."""
    each, rest = divmod(layers, pipeline)
    return tuple(each + (pipeline - 1 - rest <= stage < pipeline - 1) for stage in range(pipeline))


def layer_weights(shape: ModelShape, tensor: int, experts: int) -> Weights:
    """Return one layer's parameters on one of ``tensor`` ranks, counting ``experts``: all in memory, or the active ones."""
    queries = shape.heads * shape.head_dim // tensor
    keys = max(1, shape.kv_heads // tensor) * shape.head_dim
    width = shape.intermediate // tensor
    mlps = experts or 1
    linear = shape.hidden * (2 * queries + 2 * keys) + mlps * 3 * shape.hidden * width
    norms = 2 * shape.hidden * (2 if shape.family.norm_bias else 1) + (
        2 * shape.head_dim if shape.family.qk_norm else 0
    )
    biases = (queries + 2 * keys) * shape.qkv_bias + shape.hidden * shape.o_bias
    biases += (2 * width + shape.hidden) * shape.mlp_bias
    return Weights(linear, norms + biases + shape.hidden * shape.experts)


def stage_weights(shape: ModelShape, tensor: int, pipeline: int, stage: int) -> Weights:
    """Return the parameters that one rank of a pipeline stage holds."""
    layers = stage_layers(shape.layers, pipeline)[stage]
    layer = layer_weights(shape, tensor, shape.experts)
    first = stage == 0 or shape.family.ends_on_every_stage
    last = stage == pipeline - 1 or shape.family.ends_on_every_stage
    vocab = padded_vocab(shape) // tensor
    embedding = vocab * shape.hidden * (first or (last and shape.tied))
    head = vocab * (shape.hidden * (not shape.tied) + shape.lm_head_bias) * last
    final_norm = shape.hidden * (2 if shape.family.norm_bias else 1) * last
    return Weights(layers * layer.linear, layers * layer.other + embedding + head + final_norm)


def active_weights(shape: ModelShape, tensor: int) -> Weights:
    """Return the parameters one token is multiplied with, one rank per stage, summed; an embedding is looked up instead."""
    layer = layer_weights(shape, tensor, shape.active_experts)
    head = padded_vocab(shape) // tensor * shape.hidden
    return Weights(shape.layers * layer.linear, shape.layers * layer.other + head)


def parameter_count(shape: ModelShape) -> int:
    """Return the parameters of the whole model, without vocabulary padding; a tied head counts once."""
    layer = layer_weights(shape, 1, shape.experts)
    ends = shape.vocab * (shape.hidden * (2 - shape.tied) + shape.lm_head_bias)
    return shape.layers * (layer.linear + layer.other) + ends + shape.hidden * (2 if shape.family.norm_bias else 1)
