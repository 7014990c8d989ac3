"""``make docs-sizing``: writes the sizing table of ``docs/deploy.md`` with the planner.

For each model and length it finds the fewest GPUs of a kind that hold one sequence of that length.
"""

from pathlib import Path

from ropeswitch.deploy.plan.costs import GIB, Workload
from ropeswitch.deploy.plan.gpus import Gpu, load
from ropeswitch.deploy.plan.model_shape import ModelShape, shape_from_config
from ropeswitch.deploy.plan.planner import Candidate, Cluster, make_plan
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B, PHI4_MINI, QWEN2_5_7B, Config
from tests.docs.made import Tables, write

PAGE = Path("docs/deploy.md")

MODELS: dict[str, Config] = {
    "Phi-4-mini": PHI4_MINI,
    "Mistral-7B": MISTRAL_7B,
    "Qwen2.5-7B": QWEN2_5_7B,
    "LLaMA2-7B": LLAMA2_7B,
}
LENGTHS = (131072, 524288, 1048576, 2097152)
KIND, NODE, KV_BYTES, UTILIZATION, RESERVE_GIB = "A100-80GB", 8, 2, 0.9, 3.0
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def table() -> str:
    """A line for each model and length."""
    gpu = load()[KIND]
    lines = [
        "| Model | Longest sequence | KV for it | GPUs | Layout | First token, at least | Sequences of that length |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, config in MODELS.items():
        # As they are served here: with factors that reach the length, and without a window that forgets.
        shape = shape_from_config(name, {**config, "sliding_window": None})
        for length in LENGTHS:
            count, best = fewest(shape, gpu, length)
            where = f"TP {best.layout.tensor}, DCP {best.layout.decode_context}, PP {best.layout.pipeline}"
            kv = best.memory.kv_per_sequence * best.layout.gpus / GIB
            lines.append(
                f"| {name} | {length:,} | {kv:.0f} GiB | {count} | {where}; {_nodes(best)} "
                f"| {best.bounds.first_token:.0f} s | {best.sequences} |"
            )
    return "\n".join(lines) + "\n"


def _nodes(best: Candidate) -> str:
    nodes = -(-best.layout.gpus // NODE)
    return f"{nodes} nodes" if nodes > 1 else "1 node"


def fewest(shape: ModelShape, gpu: Gpu, length: int) -> tuple[int, Candidate]:
    """The fewest GPUs that hold a sequence of so many tokens, and the layout that is recommended for them.

    Raises:
        ValueError: where none of :data:`COUNTS` do.
    """
    work = Workload(length, KV_BYTES, UTILIZATION, RESERVE_GIB)
    for count in COUNTS:
        plan = make_plan(shape, Cluster(gpu, count, NODE, 1), work)
        if plan.recommended is not None:
            return count, plan.recommended
    raise ValueError(f"{length} tokens: no number of GPUs among {COUNTS} holds them")


TABLES: Tables = {"sizing": table}

if __name__ == "__main__":
    write(PAGE, "docs-sizing", TABLES)
