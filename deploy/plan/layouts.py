"""Layouts of a model over GPUs, and the rules of vLLM 0.32.0 that a layout may break."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ropeswitch.deploy.plan.model_shape import ModelShape
from ropeswitch.deploy.plan.weights import padded_vocab


@dataclass(frozen=True)
class Layout:
    """The ranks of one replica. Decode context parallel needs no extra GPUs: it regroups the tensor-parallel ranks."""

    tensor: int
    decode_context: int = 1  # ranks that share one copy of the KV heads by tokens
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"TP {self.tensor} DCP {self.decode_context} PP {self.pipeline}"


def layouts(gpus: int) -> Iterator[Layout]:
    """Yield the candidate layouts for up to ``gpus`` GPUs: sizes that divide ``gpus``, and powers of two."""
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0 or size & (size - 1) == 0]
    for tensor, pipeline, decode_context in product(sizes, repeat=3):
        if tensor * pipeline <= gpus and decode_context <= tensor:
            yield Layout(tensor, decode_context, pipeline)


def broken_rule(shape: ModelShape, layout: Layout) -> str | None:
    """Return the first rule that a layout breaks, with its numbers; None if vLLM accepts the layout.

    From ``vllm.config``: heads, DCP and TP (``ParallelConfig._validate_parallel_config`` and
    ``ModelConfig.verify_with_parallel_config``). From the layers: KV heads (``LlamaAttention``), MLP columns
    (``MergedColumnParallelLinear``, ``FusedMoE``), vocabulary (``VocabParallelEmbedding``). From the KV cache: windows under
    DCP (``SlidingWindowSpec``). vLLM accepts stages without a layer, but they only cost time, so they are refused too.
    """
    tp, dcp, kv_heads = layout.tensor, layout.decode_context, shape.kv_heads
    if shape.heads % tp:
        return f"TP {tp}: must divide the {shape.heads} query heads"
    if max(tp, kv_heads) % min(tp, kv_heads):
        return f"TP {tp}: must divide the {kv_heads} KV heads, or be a multiple of them"
    if shape.intermediate % tp:
        return f"TP {tp}: must divide the MLP's {shape.intermediate} columns"
    if padded_vocab(shape) % tp:
        return f"TP {tp}: must divide the vocabulary padded to 64, {padded_vocab(shape)} tokens"
    if layout.pipeline > shape.layers:
        return f"PP {layout.pipeline}: more stages than the {shape.layers} layers"
    if dcp == 1:
        return None
    if tp % dcp:
        return f"DCP {dcp}: must divide TP {tp}, whose ranks it regroups"
    if tp <= kv_heads:
        return (
            f"DCP {dcp}: no KV head is replicated (TP {tp} <= {kv_heads} KV heads): splitting heads already divides the KV "
            "evenly, and DCP would gain nothing"
        )
    if dcp > tp // kv_heads:
        return (
            f"DCP {dcp}: TP {tp} makes only {tp // kv_heads} copies of each of the {kv_heads} KV heads, and DCP must not "
            "exceed that"
        )
    if (queries := shape.heads // kv_heads) % dcp:
        return f"DCP {dcp}: must divide the {queries} query heads of each KV head"
    if shape.sliding_window is not None:
        return f"DCP {dcp}: vLLM cannot shard the KV of layers with a sliding window ({shape.sliding_window} tokens)"
    return None


@dataclass(frozen=True)
class Placement:
    """Placement of a layout's replicas: nodes of one replica, its GPUs on each, and replicas that fit on the GPUs."""

    nodes: int
    gpus_per_node: int
    replicas: int


def place(layout: Layout, gpus: int, node_size: int) -> Placement | str:
    """Place the replicas of a layout on nodes of ``node_size`` GPUs and one with the rest, or return why none fits.

    vLLM starts the same number of ranks on every node of a replica (``ParallelConfig.local_world_size``).
    """
    full_nodes, rest = divmod(gpus, node_size)
    if layout.gpus <= node_size:
        replicas = full_nodes * (node_size // layout.gpus) + rest // layout.gpus
        nodes, share = 1, layout.gpus
    else:
        nodes = -(-layout.gpus // node_size)
        if layout.gpus % nodes:
            return f"TP x PP {layout.gpus}: cannot be divided evenly over {nodes} nodes of {node_size} GPUs"
        share = layout.gpus // nodes
        replicas = (full_nodes + (rest >= share)) // nodes
    if replicas == 0:
        return f"TP x PP {layout.gpus}: {gpus} GPUs in nodes of {node_size} hold no replica of {nodes} x {share} GPUs"
    return Placement(nodes, share, replicas)
