"""The ways to lay a model out over GPUs, and the rule of vLLM 0.32.0 that a layout breaks, if any."""

from collections.abc import Iterator
from dataclasses import dataclass

from ropeswitch.deploy.plan.model_shape import ModelShape
from ropeswitch.deploy.plan.weights import padded_vocab


@dataclass(frozen=True)
class Layout:
    """One replica's ranks. Decode context parallel takes no GPUs of its own: it regroups the tensor-parallel ranks.

    Attributes:
        tensor: Tensor-parallel ranks (TP).
        decode_context: Ranks that share one copy of the KV heads by tokens (DCP).
        pipeline: Pipeline stages (PP).
    """

    tensor: int
    decode_context: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"TP {self.tensor} DCP {self.decode_context} PP {self.pipeline}"


def layouts(gpus: int) -> Iterator[Layout]:
    """Every layout worth a look on up to ``gpus`` GPUs: sizes that divide ``gpus``, and powers of two."""
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0 or size & (size - 1) == 0]
    for tensor in sizes:
        for pipeline in sizes:
            if tensor * pipeline <= gpus:
                for decode_context in sizes:
                    if decode_context <= tensor:
                        yield Layout(tensor, decode_context, pipeline)


def broken_rule(shape: ModelShape, layout: Layout) -> str | None:
    """The first rule that a layout breaks, with its numbers; None where vLLM takes it.

    From ``vllm.config``: heads, DCP and TP (``ParallelConfig._validate_parallel_config`` and
    ``ModelConfig.verify_with_parallel_config``). From the layers: KV heads (``LlamaAttention``), MLP columns
    (``MergedColumnParallelLinear``, ``FusedMoE``), vocabulary (``VocabParallelEmbedding``). From the KV cache: windows under
    DCP (``SlidingWindowSpec``). Stages without a layer start in vLLM but only cost time.
    """
    return _tensor_rule(shape, layout) or _decode_context_rule(shape, layout) or _pipeline_rule(shape, layout)


def _tensor_rule(shape: ModelShape, layout: Layout) -> str | None:
    tp = layout.tensor
    if shape.heads % tp:
        return f"TP {tp}: must divide the {shape.heads} query heads"
    if max(tp, shape.kv_heads) % min(tp, shape.kv_heads):
        return f"TP {tp}: must divide the {shape.kv_heads} KV heads, or be a multiple of them"
    if shape.intermediate % tp:
        return f"TP {tp}: must divide the MLP's {shape.intermediate} columns"
    if padded_vocab(shape) % tp:
        return f"TP {tp}: must divide the vocabulary padded to 64, {padded_vocab(shape)} tokens"
    return None


def _decode_context_rule(shape: ModelShape, layout: Layout) -> str | None:
    tp, dcp, kv_heads = layout.tensor, layout.decode_context, shape.kv_heads
    if dcp == 1:
        return None
    if tp % dcp:
        return f"DCP {dcp}: must divide TP {tp}, whose ranks it regroups"
    if tp <= kv_heads:
        return (
            f"DCP {dcp}: no KV head has a copy (TP {tp} <= {kv_heads} KV heads): splitting heads divides the KV evenly "
            "already, and DCP would gain nothing"
        )
    if dcp > tp // kv_heads:
        return f"DCP {dcp}: TP {tp} makes {tp // kv_heads} copies of each of the {kv_heads} KV heads, and DCP shares copies"
    if shape.queries_per_kv_head % dcp:
        return f"DCP {dcp}: must divide the {shape.queries_per_kv_head} query heads of each KV head"
    if shape.sliding_window is not None:
        return f"DCP {dcp}: vLLM cannot shard the KV of layers with a sliding window ({shape.sliding_window} tokens)"
    return None


def _pipeline_rule(shape: ModelShape, layout: Layout) -> str | None:
    if layout.pipeline > shape.layers:
        return f"PP {layout.pipeline}: more stages than the {shape.layers} layers"
    return None


@dataclass(frozen=True)
class Placement:
    """Where the replicas of a layout go.

    Attributes:
        nodes: Nodes of one replica.
        gpus_per_node: GPUs that one replica takes on each of its nodes.
        replicas: Replicas that the GPUs hold.
    """

    nodes: int
    gpus_per_node: int
    replicas: int


def place(layout: Layout, gpus: int, node_size: int) -> Placement | str:
    """Spread the replicas of a layout over nodes, or say why that cannot be.

    vLLM starts equally many ranks on every node of a replica (``ParallelConfig.local_world_size``).

    Args:
        layout: The layout of one replica.
        gpus: All GPUs, in full nodes and one more with the rest.
        node_size: GPUs in a full node.
    """
    full_nodes, rest = divmod(gpus, node_size)
    if layout.gpus <= node_size:
        replicas = full_nodes * (node_size // layout.gpus) + rest // layout.gpus
        nodes, share = 1, layout.gpus
    else:
        nodes = -(-layout.gpus // node_size)
        if layout.gpus % nodes:
            return f"TP x PP {layout.gpus}: does not spread evenly over {nodes} nodes of {node_size} GPUs"
        share = layout.gpus // nodes
        replicas = (full_nodes + (rest >= share)) // nodes
    if replicas == 0:
        return f"TP x PP {layout.gpus}: {gpus} GPUs in nodes of {node_size} hold no replica of {nodes} x {share} GPUs"
    return Placement(nodes, share, replicas)
