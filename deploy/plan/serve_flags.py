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
    """Serving options, as the user gave them."""

    model: str
    max_model_len: int
    memory_utilization: float
    kv_cache_dtype: str
    choice: Choice | None = None  # of --ladder or --factors
    native_window: int | None = None
    policy: str | None = None  # of --ladder-policy


def serve_flags(serving: Serving, chosen: Candidate) -> list[str]:
    """Return the arguments after ``ropeswitch`` for a replica's first node; other nodes differ only in ``--node-rank``."""
    choice, layout, nodes = serving.choice, chosen.layout, chosen.placement.nodes
    flags = {
        "--factors": choice and choice.path,
        "--ladder": None if choice is None or choice.path else choice.text,
        "--native-window": serving.native_window,
        "--ladder-policy": serving.policy,
        "--max-model-len": serving.max_model_len,
        "--max-num-seqs": chosen.reserved.max_num_seqs,
        "--gpu-memory-utilization": f"{serving.memory_utilization:g}",
        "--kv-cache-dtype": None if serving.kv_cache_dtype == "auto" else serving.kv_cache_dtype,
    }
    sizes = {"tensor": layout.tensor, "decode-context": layout.decode_context, "pipeline": layout.pipeline}
    flags |= {f"--{name}-parallel-size": size for name, size in sizes.items() if size > 1}
    flags |= {"--nnodes": nodes, "--node-rank": 0, "--master-addr": HEAD_ADDRESS} if nodes > 1 else {}
    return ["serve", serving.model, *(str(word) for flag in flags.items() if flag[1] is not None for word in flag)]


def helm_values(serving: Serving, shape: ModelShape, chosen: Candidate) -> dict[str, Any]:
    """Return the plan as values of the chart; docs/planning.md describes each value."""
    placement = chosen.placement
    # The chart gets a factor file's content separately.
    text = None if serving.choice is None or serving.choice.path else serving.choice.text
    ladder = {"ladder": text, "nativeWindow": serving.native_window, "ladderPolicy": serving.policy}
    return {
        "model": serving.model,
        "maxModelLen": serving.max_model_len,
        "maxNumSeqs": chosen.reserved.max_num_seqs,
        **{name: value for name, value in ladder.items() if value is not None},
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
            "queriesPerKvHead": shape.heads // shape.kv_heads,
            "kvCapacity": chosen.memory.capacity,
        },
        "resources": {"limits": {"nvidia.com/gpu": placement.gpus_per_node}},
    }
