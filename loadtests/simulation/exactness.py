"""Simulates the cost of exactness: requests that outgrow the first set together, against stock with one set for all.

The ratio compares our time with the sum of stock's time and the recomputation's prefill by itself (docs/simulation.md).
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import flag, whole
from ropeswitch.factors.parser import Parser
from ropeswitch.loadtests.simulation import command
from ropeswitch.loadtests.simulation.workloads import FIRST_SET

if TYPE_CHECKING:
    from ropeswitch.loadtests.simulation.cluster import Cluster

# Tokens by which a prompt ends before the first set's limit, and tokens of its answer.
BEFORE, ANSWER = 100, 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each kind of GPU and return the exit code.

    Returns:
        The exit code: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    return command.run("exactness", lambda: _run(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="exactness", description=__doc__)
    add = parser.add_argument
    add("--model", default="mistral-7b", help="shape of the model (default: %(default)s)")
    add(
        "--gpu",
        nargs="+",
        default=["A100-80GB", "H100-80GB"],
        metavar="KIND",
        help="kinds of GPU (default: A100-80GB H100-80GB)",
    )
    add(
        "--gpus", type=flag(whole, 1, 1024), default=1, metavar="N", help="number of GPUs, tensor parallel (default: 1)"
    )
    add(
        "--requests",
        type=flag(whole, 1, 1000),
        nargs="+",
        default=[1, 8, 32],
        help="numbers of simultaneous requests (default: 1 8 32)",
    )
    return parser


def _run(args: argparse.Namespace) -> None:
    from ropeswitch.deploy.plan.gpus import choose, load
    from ropeswitch.loadtests.simulation.cluster import make_cluster

    clusters = [make_cluster(args.model, choose(load(), kind), args.gpus) for kind in args.gpu]
    for cluster in clusters:
        most = cluster.kv_tokens // (FIRST_SET + ANSWER)
        if max(args.requests) > most:
            raise UsageError(
                f"--requests: {max(args.requests)} do not fit: {args.gpus} x {cluster.gpu.name} hold at most {most}; "
                "use fewer requests, or more --gpus"
            )
    for cluster in clusters:
        print(f"\n{args.model} on {args.gpus} x {cluster.gpu.name}\n\n{_table(cluster, args.requests)}", flush=True)


def _table(cluster: "Cluster", counts: Sequence[int]) -> str:
    from ropeswitch.loadtests.scheduling.tables import table
    from ropeswitch.loadtests.simulation.costs import StepCosts
    from ropeswitch.loadtests.simulation.policies import Builder, Options, ours, stock_default
    from ropeswitch.loadtests.simulation.workloads import Arrival, Workload

    costs = StepCosts(cluster)
    served, chunk = ours(cluster.gpu), stock_default(cluster.gpu).max_num_batched_tokens
    policies = {
        "stock, long set for all": (stock_default(cluster.gpu), True),
        "ours, length": (served, True),
        "ours, length, no prefix cache": (served, False),
        "ours, reserve": (replace(served, reserve=True), True),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(cluster, costs, Path(folder))
        for count in counts:
            arrivals = (Arrival(0.0, FIRST_SET - BEFORE, ANSWER),) * count
            workload = Workload("exactness", "", arrivals, cluster.kv_blocks)
            needed = count * (FIRST_SET - BEFORE + ANSWER - 1)
            stock = 0.0
            for name, (policy, cached) in policies.items():
                outcome = builder.simulation(policy, workload, Options(prefix_caching=cached)).run()
                stock = stock or outcome.seconds
                # Stock's run, too, computes the token that outgrows the set.
                again = count * costs.prefill_seconds(FIRST_SET, chunk) if "length" in name else 0.0
                answer = sum(record.completion_seconds for record in outcome.records) / count
                gap = max(record.worst_gap for record in outcome.records)
                row = [str(count), name, str(outcome.computed - needed), f"{outcome.seconds:.2f}"]
                row += [f"{needed / outcome.seconds:.0f}", f"{answer:.2f}", f"{gap:.3f}"]
                rows.append([*row, f"{stock + again:.2f}", f"{outcome.seconds / (stock + again):.3f}"])
    header = ["requests", "side", "tokens recomputed", "all answers s", "tokens/s", "mean answer s", "worst gap s"]
    return table([*header, "stock + recomputation s", "ratio"], rows)


if __name__ == "__main__":
    sys.exit(main())
