"""Simulates routers in front of several replicas and compares waiting times and tokens per second.

A table for each workload and number of replicas goes to standard output, and a plot into the folder of ``--out``. Runs are
appended to runs.jsonl there, so the same command resumes after an interruption; remove that file after a change to a
scheduler or router. docs/simulation.md describes the figures.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from ropeswitch.factors.numbers import flag, number, whole
from ropeswitch.factors.parser import Parser
from ropeswitch.loadtests.runs import Runs
from ropeswitch.loadtests.simulation import command

if TYPE_CHECKING:
    from ropeswitch.loadtests.simulation.records import Record

POLICIES = ("ours", "stock")
WORKLOADS = ("mixed", "heavy", "sessions")


@dataclass(frozen=True)
class Run:
    """One simulation.

    Attributes:
        workload: One of :data:`WORKLOADS`.
        replicas: Number of replicas.
        policy: One of :data:`POLICIES`.
        router: Name of the router.
        seed: Random seed of the workload.
        short: p99 of the time to first token of prompts of up to 2,048 tokens, in seconds.
        long: p99 of the time to first token of prompts beyond 8,192 tokens, in seconds.
        tokens: Prompt and answer tokens per second, until the last answer is complete.
    """

    workload: str
    replicas: int
    policy: str
    router: str
    seed: int
    short: float
    long: float
    tokens: float

    @property
    def label(self) -> str:
        return self.router if self.policy == "ours" else f"{self.router}, stock's scheduler"


def figures(records: Sequence["Record"]) -> tuple[float, float, float]:
    """Return ``short``, ``long`` and ``tokens`` of a :class:`Run`; a p99 is 0 if there is no such prompt."""
    from ropeswitch.loadtests.simulation.report import percentile
    from ropeswitch.loadtests.simulation.workloads import FIRST_SET, SHORT

    def p99(waits: list[float]) -> float:
        return percentile(sorted(waits), 0.99) if waits else 0.0

    short = [each.first_token_seconds for each in records if each.arrival.prompt <= SHORT]
    long = [each.first_token_seconds for each in records if each.arrival.prompt > FIRST_SET]
    tokens = sum(each.arrival.prompt + each.arrival.output for each in records)
    seconds = max(each.last for each in records) - min(each.arrival.at for each in records)
    return p99(short), p99(long), tokens / seconds


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table with each router's means over the seeds, with minimum and maximum."""
    rows = [
        "| router | p99 first token, short, s | p99 first token, long, s | tokens/s |",
        "| --- | --- | --- | --- |",
    ]
    for label in dict.fromkeys(run.label for run in runs):
        own = [run for run in runs if run.label == label]
        cells = [_span([run.short for run in own]), _span([run.long for run in own])]
        rows.append(f"| {label} | {' | '.join(cells)} | {mean(run.tokens for run in own):,.0f} |")
    return "\n".join(rows)


def _span(values: Sequence[float]) -> str:
    return f"{mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Write a PNG with both waiting times of each router, one panel per workload and number of replicas; return ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((run.workload, run.replicas) for run in runs))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 5), layout="constrained", squeeze=False)
    for axis, (workload, replicas) in zip(axes[0], panels, strict=True):
        shown = [run for run in runs if (run.workload, run.replicas) == (workload, replicas)]
        for place, label in enumerate(dict.fromkeys(run.label for run in shown)):
            own = [run for run in shown if run.label == label]
            marker = "o" if own[0].policy == "ours" else "x"
            waits = [run.short for run in own], [run.long for run in own]
            axis.scatter(*waits, marker=marker, color=f"C{place % 10}", label=label)
        axis.set(xscale="log", yscale="log", xlabel="p99 first token of short prompts, s")
        axis.set(ylabel="p99 first token of long prompts, s", title=f"{workload}, {replicas} replicas")
    axes[0][0].legend(fontsize=7)
    figure.suptitle("simulated with datasheet rates, not measured", fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit code.

    Returns:
        The exit code: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    return command.run("routing", lambda: _run(_parser().parse_args(arguments)))


def _run(args: argparse.Namespace) -> None:
    from ropeswitch.deploy.plan import gpus
    from ropeswitch.loadtests.simulation.cluster import make_cluster
    from ropeswitch.loadtests.simulation.costs import StepCosts
    from ropeswitch.loadtests.simulation.fleet import Replica, run
    from ropeswitch.loadtests.simulation.fleet_workloads import arrivals, long_share
    from ropeswitch.loadtests.simulation.policies import Builder, Options, ours, stock_default
    from ropeswitch.loadtests.simulation.routers import OURS_ONLY, POOLED, SCORERS, Router
    from ropeswitch.loadtests.simulation.workloads import Size, Workload

    gpu = gpus.choose(gpus.load(), args.gpu)
    cluster = make_cluster(args.model, gpu, 1)
    command.check_fits(cluster, args.longest)
    costs = StepCosts(cluster)
    policies = {"ours": ours(gpu), "stock": stock_default(gpu)}
    args.out.mkdir(parents=True, exist_ok=True)
    shape = {name: getattr(args, name) for name in ("model", "gpu", "requests", "longest", "load", "noise", "scrape")}
    runs = Runs(args.out / "runs.jsonl", Run, shape)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    pairs = [(policy, name) for policy in args.policy or POLICIES for name in SCORERS]
    pairs = [(policy, name) for policy, name in pairs if policy == "ours" or name not in OURS_ONLY]
    shown: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(cluster, costs, Path(folder))
        for workload in args.workload or WORKLOADS:
            for count in args.replicas:
                for seed in seeds:
                    size = Size(args.requests, args.longest, args.load, seed)
                    requests = arrivals(workload, count, cluster, costs, size)
                    share = long_share(requests, costs)
                    empty = Workload(workload, "", (), cluster.kv_blocks)
                    for policy, name in pairs:
                        if runs.has(workload=workload, replicas=count, policy=policy, router=name, seed=seed):
                            continue
                        options = Options(prefix_caching=workload == "sessions", noise=args.noise, seed=seed)
                        replicas = [
                            Replica(builder.simulation(policies[policy], empty, options), args.scrape)
                            for _ in range(count)
                        ]
                        long = min(max(1, round(count * share)), count - 1) if name in POOLED else 0
                        records = run(replicas, Router(SCORERS[name], long), requests)
                        runs.add(Run(workload, count, policy, name, seed, *figures(records)))
                    print(f"routing: {workload}, {count} replicas: seed {seed} done", file=sys.stderr, flush=True)
                chosen = [each for each in runs.found if (each.workload, each.replicas) == (workload, count)]
                chosen = [each for each in chosen if each.seed in seeds and (each.policy, each.router) in pairs]
                chosen.sort(key=lambda each: pairs.index((each.policy, each.router)))
                shown += chosen
                print(f"### {workload}, {count} x {gpu.name}, {args.seeds} seeds\n\n{table(chosen)}\n", flush=True)
    print(f"plot: {draw(shown, args.out / 'routing.png')}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="routing", description=__doc__)
    add = parser.add_argument
    add("--workload", action="append", choices=WORKLOADS, help="workload to simulate; repeatable (default: all)")
    add(
        "--replicas",
        type=flag(whole, 2, 64),
        nargs="+",
        default=[4, 8, 16],
        metavar="N",
        help="numbers of replicas (default: 4 8 16)",
    )
    add("--policy", action="append", choices=POLICIES, help="scheduler of the replicas; repeatable (default: both)")
    add("--model", default="mistral-7b", help="shape of the model (default: %(default)s)")
    add("--gpu", default="A100-80GB", metavar="KIND", help="kind of GPU, one per replica (default: %(default)s)")
    add(
        "--requests", type=flag(whole, 5, 100_000), default=60, help="short requests per replica (default: %(default)s)"
    )
    add(
        "--longest",
        type=flag(whole, 16_384, 2_096_640),
        default=131_072,
        help="tokens of the longest prompt (default: %(default)s)",
    )
    add(
        "--load",
        type=flag(number, 0.01, 10),
        default=0.65,
        help="share of time each replica is busy (default: %(default)s)",
    )
    add(
        "--scrape",
        type=flag(number, 0.001, 60),
        default=0.05,
        help="seconds between readings of the metrics (default: %(default)s)",
    )
    add("--noise", type=flag(number, 0, 1), default=0.05, help="relative spread of step times (default: %(default)s)")
    add("--seeds", type=flag(whole, 1, 1000), default=3, help="number of seeds (default: %(default)s)")
    add("--first-seed", type=flag(whole, 0, 2**31), default=0, help="first seed (default: 0)")
    add("--out", type=Path, default=Path("routing"), metavar="DIR", help="folder for runs and plot (default: routing)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
