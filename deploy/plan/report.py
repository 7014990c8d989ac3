"""Formats a plan as text for people, and as plain JSON values for programs."""

from collections.abc import Callable, Sequence
from typing import Any

from ropeswitch.deploy.plan.costs import GIB, Workload, prefill_flops
from ropeswitch.deploy.plan.model_shape import ModelShape
from ropeswitch.deploy.plan.planner import Candidate, Cluster, Plan
from ropeswitch.deploy.plan.serve_flags import HEAD_ADDRESS
from ropeswitch.deploy.plan.weights import parameter_count
from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.factors.text_table import table
from ropeswitch.server.start.fit.memory import gib

KIB = 1024


def seconds(value: float) -> str:
    """Format a time to about three digits, in ms below one second."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


# The table's columns: header, field of `_json_row`, and format or unit.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("TP", "tensor", str),
    ("DCP", "decode_context", str),
    ("PP", "pipeline", str),
    ("replicas", "replicas", str),
    ("weights GiB/GPU", "weight_bytes_per_gpu", lambda size: f"{size / GIB:.2f}"),
    ("KV KiB/token/GPU", "kv_bytes_per_token_per_gpu", lambda size: f"{size / KIB:g}"),
    ("KV GiB/GPU at full length", "kv_bytes_per_sequence_per_gpu", lambda size: f"{size / GIB:.2f}"),
    ("sequences", "sequences", str),
    ("first token >=", "first_token_seconds", seconds),
    ("next token >=", "next_token_seconds", seconds),
    ("verdict", "verdict", str),
)


def text(shape: ModelShape, cluster: Cluster, load: Workload, made: MadeLadder, plan: Plan, command: str | None) -> str:
    """Return the whole report as text; ``command`` is the recommended command, quoted, None if no layout fits."""
    rows = [[shown(row[field]) for _, field, shown in COLUMNS] for row in map(_json_row, plan.candidates)]
    parts = [
        _asked(shape, cluster, load),
        made.lines(load.max_model_len),
        [table([[header for header, _, _ in COLUMNS], *rows])],
        _grouped([each.rule for each in plan.refused]),
        _recommended(cluster, plan, command),
        [
            "Times are lower bounds, not estimates: one sequence alone, nothing cached, datasheet peaks, no queueing.",
            f"Memory assumes {load.reserve_gib:g} GiB per GPU (--reserve-gib) for activations, CUDA graphs, NCCL and the "
            f"CUDA context, within the {load.memory_utilization:g} that vLLM may use.",
            "Replicas are separate servers. docs/planning.md lists every formula.",
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def as_json(
    shape: ModelShape, cluster: Cluster, load: Workload, made: MadeLadder, plan: Plan, command: Sequence[str] | None
) -> dict[str, Any]:
    """Return the report as plain values; sizes are in bytes, times are lower bounds in seconds."""
    return {
        "model": {
            "model_type": shape.model_type,
            "parameters": parameter_count(shape),
            "layers": shape.layers,
            "query_heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "weight_format": shape.weights.name,
        },
        "max_model_len": load.max_model_len,
        "ladder": {
            "name": made.name,
            "sets": [
                {"name": each.name, "max_length": each.max_length, "scale": each.scale, **origin.to_json()}
                for each, origin in zip(made.ladder.sets, made.origins, strict=True)
            ],
        },
        "target_concurrency": cluster.target_concurrency,
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "gpus_per_node": cluster.node_size,
        "node_memory_bytes": cluster.node_memory,
        "gpu_memory_utilization": load.memory_utilization,
        "reserve_gib_per_gpu": load.reserve_gib,
        "kv_bytes_per_token": _kv_bytes(shape, load),
        "prefill_flops": prefill_flops(shape, load.max_model_len),
        "layouts": [_json_row(candidate) for candidate in plan.candidates],
        "refused": [_sizes(refused) | {"rule": refused.rule} for refused in plan.refused],
        "recommended": _json_row(plan.recommended) if plan.recommended else None,
        "fewest_gpus": plan.fewest_gpus,
        "command": list(command) if command else None,
    }


def _asked(shape: ModelShape, cluster: Cluster, load: Workload) -> list[str]:
    kv, tokens, gpu = _kv_bytes(shape, load), load.max_model_len, cluster.gpu
    experts = f", {shape.active_experts} of {shape.experts} experts per token" if shape.experts else ""
    return [
        f"model   {shape.model_type}: {parameter_count(shape) / 1e9:.2f} B parameters, {shape.weights.name} weights{experts}"
        f"; {shape.layers} layers, {shape.heads} query heads, {shape.kv_heads} KV heads of {shape.head_dim} values",
        f"KV      {kv / KIB:g} KiB per token at {8 * load.kv_bytes} bits; {kv * tokens / GIB:,.2f} GiB at {tokens:,} tokens",
        f"compute {prefill_flops(shape, tokens):.3g} operations to prefill {tokens:,} tokens",
        f"GPUs    {cluster.gpus} x {gpu.name}, {cluster.node_size} per node: {gpu.memory_gib:g} GiB, "
        f"{gpu.bf16_tflops:g} bf16 TFLOP/s, {gpu.memory_gb_per_s:g} GB/s each",
        f"target  {cluster.target_concurrency} sequences of {tokens:,} tokens at once",
    ]


def _grouped(rules: Sequence[str]) -> list[str]:
    """Merge rules that differ only in their first number, such as those for DCP 2 and DCP 4, into one line."""
    numbers: dict[tuple[str, str], dict[str, None]] = {}
    for rule in rules:
        name, _, reason = rule.partition(": ")
        word, _, number = name.rpartition(" ")
        numbers.setdefault((word, reason), {})[number] = None
    lines = [f"  {word} {', '.join(found)}: {reason}" for (word, reason), found in numbers.items()]
    return ["Rejected layouts:", *lines] if lines else []


def _recommended(cluster: Cluster, plan: Plan, command: str | None) -> list[str]:
    if plan.recommended is None or command is None:
        return [
            f"No layout of {cluster.gpus} x {cluster.gpu.name} meets the target of {cluster.target_concurrency} such "
            "sequences. Use more GPUs, GPUs with more memory,",
            "a shorter --max-model-len or an 8-bit --kv-cache-dtype.",
        ]
    layout, place = plan.recommended.layout, plan.recommended.placement
    where = f"{place.nodes} node{'s' if place.nodes > 1 else ''} x {place.gpus_per_node} GPUs"
    lines = [
        f"Recommended: {layout}; {place.replicas} replica{'s' if place.replicas > 1 else ''} of {where}.",
        f"  ropeswitch {command}",
    ]
    if place.nodes > 1:
        lines.append(
            f"  Run it on each node of a replica, with --node-rank 0, 1, ... and the address of node 0 for {HEAD_ADDRESS}."
        )
    reserved = plan.recommended.reserved
    node = "" if cluster.node_memory is None else f" (node: {gib(cluster.node_memory)})"
    lines.append(
        f"--max-num-seqs {reserved.max_num_seqs} reserves {gib(reserved.host_bytes)} of host memory per pod{node}, and "
        f"{gib(reserved.table_bytes)} per GPU for block tables."
    )
    if reserved.missing:
        lines.append(f"vLLM's default does not fit: {reserved.missing}.")
    elif cluster.node_memory is None:
        lines.append("Host memory was not checked; set --node-memory-gib to check it.")
    if plan.fewest_gpus is not None and plan.fewest_gpus < cluster.gpus:
        lines.append(f"The target needs only {plan.fewest_gpus} of the {cluster.gpus} GPUs; the others add speed.")
    return lines


def _kv_bytes(shape: ModelShape, load: Workload) -> int:
    return shape.layers * 2 * shape.kv_heads * shape.head_dim * load.kv_bytes


def _sizes(each: Any) -> dict[str, int]:
    layout = each.layout
    return {"tensor": layout.tensor, "decode_context": layout.decode_context, "pipeline": layout.pipeline}


def _json_row(candidate: Candidate) -> dict[str, Any]:
    placement, held, bounds = candidate.placement, candidate.memory, candidate.bounds
    return _sizes(candidate) | {
        "replicas": placement.replicas,
        "nodes_per_replica": placement.nodes,
        "gpus_per_node": placement.gpus_per_node,
        "weight_bytes_per_gpu": held.weights,
        "kv_bytes_per_token_per_gpu": held.kv_per_token,
        "kv_bytes_per_sequence_per_gpu": held.kv_per_sequence,
        "kv_bytes_available_per_gpu": held.kv_available,
        "max_num_seqs": candidate.reserved.max_num_seqs,
        "sequence_bytes_per_pod": candidate.reserved.host_bytes,
        "block_table_bytes_per_gpu": candidate.reserved.table_bytes,
        "longest_sequence": held.longest,
        "sequences": candidate.sequences,
        "first_token_seconds": bounds.first_token,
        "next_token_seconds": bounds.next_token,
        "fits": candidate.fits,
        "verdict": candidate.verdict,
    }
