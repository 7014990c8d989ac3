"""A plan as a ``ropeswitch serve`` command and as equivalent values of the Helm chart."""

from dataclasses import dataclass
from typing import Any

from ropeswitch.deploy.plan.model_shape import ModelShape
from ropeswitch.deploy.plan.planner import Candidate
from ropeswitch.factors.ladders.choice import Choice

# Placeholder in the printed command for an address that the plan cannot know.
HEAD_ADDRESS = "HEAD_ADDRESS"


@dataclass(frozen=True)
class Serving:
    """Serving options, as the user gave them.

    Attributes:
        model: MODEL for ``serve``.
        max_model_len: Maximum sequence length, in tokens.
        memory_utilization: Share of a GPU's memory that vLLM may use.
        kv_cache_dtype: Type of the KV cache, a value of vLLM's flag.
        choice: Value of ``--ladder`` or ``--factors``; None for the automatic ladder.
        native_window: Window the model was trained with, in tokens, if the user gives it.
        policy: Value of ``--ladder-policy``, or None for the server's default.
    """

    model: str
    max_model_len: int
    memory_utilization: float
    kv_cache_dtype: str
    choice: Choice | None = None
    native_window: int | None = None
    policy: str | None = None


def serve_flags(serving: Serving, chosen: Candidate) -> list[str]:
    """Return the arguments after ``ropeswitch`` for a replica's first node; other nodes differ only in ``--node-rank``."""
    flags = ["serve", serving.model]
    if serving.choice is not None and serving.choice.path is not None:
        flags += ["--factors", serving.choice.path]
    elif serving.choice is not None:
        flags += ["--ladder", serving.choice.text]
    if serving.native_window is not None:
        flags += ["--native-window", str(serving.native_window)]
    if serving.policy is not None:
        flags += ["--ladder-policy", serving.policy]
    flags += ["--max-model-len", str(serving.max_model_len)]
    flags += ["--max-num-seqs", str(chosen.reserved.max_num_seqs)]
    flags += ["--gpu-memory-utilization", f"{serving.memory_utilization:g}"]
    if serving.kv_cache_dtype != "auto":
        flags += ["--kv-cache-dtype", serving.kv_cache_dtype]
    layout = chosen.layout
    sizes = (("tensor", layout.tensor), ("decode-context", layout.decode_context), ("pipeline", layout.pipeline))
    for name, size in sizes:
        if size > 1:
            flags += [f"--{name}-parallel-size", str(size)]
    if chosen.placement.nodes > 1:
        flags += ["--nnodes", str(chosen.placement.nodes), "--node-rank", "0", "--master-addr", HEAD_ADDRESS]
    return flags


def helm_values(serving: Serving, shape: ModelShape, chosen: Candidate) -> dict[str, Any]:
    """Return the plan as values of the chart; docs/planning.md describes each value."""
    placement = chosen.placement
    values: dict[str, Any] = {
        "model": serving.model,
        "maxModelLen": serving.max_model_len,
        "maxNumSeqs": chosen.reserved.max_num_seqs,
        **_ladder_values(serving),
        "gpuMemoryUtilization": serving.memory_utilization,
        "kvCacheDtype": serving.kv_cache_dtype,
        "parallelism": {
            "tensor": chosen.layout.tensor,
            "decodeContext": chosen.layout.decode_context,
            "pipeline": chosen.layout.pipeline,
            "nodes": placement.nodes,
            "gpusPerNode": placement.gpus_per_node,
            "dataParallelReplicas": placement.replicas,
        },
        "plan": {
            "kvHeads": shape.kv_heads,
            "queriesPerKvHead": shape.queries_per_kv_head,
            "kvCapacity": chosen.memory.capacity,
        },
        "resources": {"limits": {"nvidia.com/gpu": placement.gpus_per_node}},
    }
    return values


def _ladder_values(serving: Serving) -> dict[str, Any]:
    """Return the values for the ladder that the user gave; the chart gets a factor file's content separately."""
    text = serving.choice.text if serving.choice is not None and serving.choice.path is None else None
    values = {"ladder": text, "nativeWindow": serving.native_window, "ladderPolicy": serving.policy}
    return {name: value for name, value in values.items() if value is not None}
