"""``make docs-sizing``: writes the sizing table of ``docs/deploy.md`` with the planner.

For each model and length it finds the fewest GPUs of a kind that hold one sequence of that length.
"""

from pathlib import Path

from ropeswitch.deploy.plan.costs import GIB, Workload
from ropeswitch.deploy.plan.gpus import Gpu, load
from ropeswitch.deploy.plan.model_shape import ModelShape, shape_from_config
from ropeswitch.deploy.plan.planner import Candidate, Cluster, make_plan
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B, PHI4_MINI, QWEN2_5_7B
from tests.docs.made import Tables, write

PAGE = Path("docs/deploy.md")

MODELS = {"Phi-4-mini": PHI4_MINI, "Mistral-7B": MISTRAL_7B, "Qwen2.5-7B": QWEN2_5_7B, "LLaMA2-7B": LLAMA2_7B}
LENGTHS = (131072, 524288, 1048576, 2097152)
KIND, NODE, KV_BYTES = "A100-80GB", 8, 2
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
            layout, nodes = best.layout, -(-best.layout.gpus // NODE)
            sizes = {"TP": layout.tensor, "DCP": layout.decode_context, "PP": layout.pipeline}
            where = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
            where += f"; {nodes} nodes" if nodes > 1 else ""
            kv = best.memory.kv_per_sequence * layout.gpus / GIB
            lines.append(
                f"| {name} | {length:,} | {kv:.0f} GiB | {count} | {where} "
                f"| {best.bounds.first_token:.0f} s | {best.sequences} |"
            )
    return "\n".join(lines) + "\n"


def fewest(shape: ModelShape, gpu: Gpu, length: int) -> tuple[int, Candidate]:
    """Return the fewest GPUs that hold a sequence of so many tokens, and the layout recommended for them."""
    plans = (
        (count, make_plan(shape, Cluster(gpu, count, NODE, 1), Workload(length, KV_BYTES, 0.9, 3.0)))
        for count in COUNTS
    )
    return next((count, plan.recommended) for count, plan in plans if plan.recommended is not None)


TABLES: Tables = {"sizing": table}

if __name__ == "__main__":
    write(PAGE, "docs-sizing", TABLES)
