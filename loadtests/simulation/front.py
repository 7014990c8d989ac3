"""Simulates our scheduler at several targets against stock vLLM's settings, on several seeds.

Tables go to standard output and a plot into the folder of ``--out``. Runs are appended to runs.jsonl there, so the same
command resumes after an interruption; remove that file after a change to a scheduler. docs/simulation.md describes the
figures.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropeswitch.factors.numbers import flag, number, whole
from ropeswitch.factors.parser import Parser
from ropeswitch.loadtests.runs import Runs
from ropeswitch.loadtests.scheduling.front import Run, report
from ropeswitch.loadtests.scheduling.plots import draw
from ropeswitch.loadtests.simulation import command

if TYPE_CHECKING:
    from ropeswitch.loadtests.simulation.policies import Policy
    from ropeswitch.loadtests.simulation.records import Outcome

WORKLOADS = ("single", "mixed", "heavy", "crossing")
TARGETS = (0.02, 0.03, 0.05, 0.07, 0.15, 0.2, 0.4, 0.8)
COMBINED = (512, 2048, 8192)
THRESHOLDS, BATCHED, INTERVALS = (64, 128, 256, 512, 1024), (256, 512, 1024, 2048, 8192, 16384), (2, 4, 8)


def stock(default: int) -> list["Policy"]:
    """Return stock vLLM's settings that limit a long prompt's share of steps, at several values, and some combinations.

    Args:
        default: vLLM's ``max_num_batched_tokens`` without flags.
    """
    from ropeswitch.loadtests.simulation.policies import Policy

    found = [Policy("default", default)]
    found += [Policy("tuned", tokens) for tokens in BATCHED if tokens != default]
    for threshold in THRESHOLDS:
        found += [Policy("tuned", default, threshold), Policy("tuned", default, threshold, adaptive=True)]
    found += [Policy("tuned", default, threshold, priority=True) for threshold in (0, *THRESHOLDS[::2])]
    found += [Policy("tuned", default, interval=interval) for interval in INTERVALS]
    found += [Policy("tuned", tokens, 256) for tokens in COMBINED if tokens != default]
    return [*found, Policy("tuned", default, 256, interval=4), Policy("tuned", default, 512, interval=2)]


def long_seconds(outcome: "Outcome") -> float:
    """Return the mean seconds until long prompts, those at least half as long as the longest, are complete."""
    least = max(record.arrival.prompt for record in outcome.records) / 2
    done = [record.completion_seconds for record in outcome.records if record.arrival.prompt >= least]
    return sum(done) / len(done)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit code.

    Returns:
        The exit code: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    return command.run("front", lambda: _run(_parser().parse_args(arguments)))


def _run(args: argparse.Namespace) -> None:
    from ropeswitch.deploy.plan import gpus
    from ropeswitch.deploy.plan.gpus import server_defaults
    from ropeswitch.loadtests.simulation.cluster import make_cluster
    from ropeswitch.loadtests.simulation.costs import StepCosts
    from ropeswitch.loadtests.simulation.policies import Builder, Options, ours
    from ropeswitch.loadtests.simulation.workloads import SHORT, Size, make_workload

    gpu = gpus.choose(gpus.load(), args.gpu)
    cluster = make_cluster(args.model, gpu, args.gpus)
    command.check_fits(cluster, args.longest)
    costs = StepCosts(cluster)
    policies = [*stock(server_defaults(gpu)[0]), ours(gpu), *(ours(gpu, target) for target in args.targets)]
    offered = dict.fromkeys(WORKLOADS, policies)
    # The policy reserve matters only if requests outgrow a set.
    offered["crossing"] = [*policies, *(replace(each, reserve=True) for each in policies if each.kind == "ours")]
    args.out.mkdir(parents=True, exist_ok=True)
    shape = {name: getattr(args, name) for name in ("model", "gpu", "gpus", "requests", "longest", "load", "noise")}
    path, names = args.out / "runs.jsonl", args.workload or WORKLOADS
    runs = {name: Runs(path, Run, shape | {"workload": name}) for name in names}
    drawn: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(cluster, costs, Path(folder))
        for name in names:
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                workload = make_workload(name, cluster, costs, Size(args.requests, args.longest, args.load, seed))
                options = Options(prefix_caching=name == "crossing", noise=args.noise, seed=seed)
                for policy in offered[name]:
                    if runs[name].has(setting=str(policy), seed=seed):
                        continue
                    outcome = builder.simulation(policy, workload, options).run()
                    firsts = tuple(r.first_token_seconds for r in outcome.records if r.arrival.prompt <= SHORT)
                    gap = max(record.worst_gap for record in outcome.records)
                    long = long_seconds(outcome)
                    runs[name].add(Run(str(policy), policy.kind == "ours", seed, firsts, gap, long))
                print(f"front: {args.gpus} x {gpu.name}, {name}: seed {seed} done", file=sys.stderr, flush=True)
            settings = {str(policy) for policy in offered[name]}
            seeds = range(args.first_seed, args.first_seed + args.seeds)
            shown = [run for run in runs[name].found if run.setting in settings and run.seed in seeds]
            drawn[name] = shown
            title = f"{name}, {args.gpus} x {gpu.name}, {args.seeds} seeds: {workload.about}"
            print(f"### {title}\n\n{report(shown)}\n", flush=True)
    print(f"plot: {draw(drawn, args.out / 'front.png')}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="front", description=__doc__)
    add = parser.add_argument
    add("--workload", action="append", choices=WORKLOADS, help="workload to simulate; repeatable (default: all)")
    add("--model", default="mistral-7b", help="shape of the model (default: %(default)s)")
    add("--gpu", default="A100-80GB", metavar="KIND", help="kind of GPU (default: %(default)s)")
    add("--gpus", type=flag(whole, 1, 1024), default=1, metavar="N", help="number of GPUs (default: %(default)s)")
    add("--requests", type=flag(whole, 2, 100_000), default=150, help="short requests per run (default: %(default)s)")
    add(
        "--longest",
        type=flag(whole, 8192, 2_096_640),
        default=131_072,
        help="tokens of the longest prompt (default: %(default)s)",
    )
    add(
        "--load",
        type=flag(number, 0.01, 10),
        default=0.65,
        help="share of time the cluster is busy (default: %(default)s)",
    )
    add(
        "--targets",
        type=command.targets,
        default=TARGETS,
        metavar="S,S",
        help="our step latency targets in seconds, in addition to the default",
    )
    add("--noise", type=flag(number, 0, 1), default=0.05, help="relative spread of step times (default: %(default)s)")
    add("--seeds", type=flag(whole, 2, 1000), default=5, help="seeds per workload and setting (default: %(default)s)")
    add("--first-seed", type=flag(whole, 0, 2**31), default=0, help="first seed (default: 0)")
    add("--out", type=Path, default=Path("front"), metavar="DIR", help="folder for runs and plot (default: front)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
