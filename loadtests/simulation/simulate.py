"""`make simulate`: compares stock vLLM, stock tuned and ours on the same requests, with a cost model as the engine."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors.numbers import flag, number, whole
from ropeswitch.factors.parser import Parser
from ropeswitch.loadtests.simulation import command

if TYPE_CHECKING:
    from ropeswitch.loadtests.simulation.cluster import Cluster
    from ropeswitch.loadtests.simulation.costs import StepCosts
    from ropeswitch.loadtests.simulation.policies import Builder, Options, Policy
    from ropeswitch.loadtests.simulation.records import Outcome, Step
    from ropeswitch.loadtests.simulation.workloads import Workload

# Requests per workload, by default and with --quick.
REQUESTS = {"mixed": (1000, 60), "heavy": (2000, 120), "burst": (64, 64), "full": (600, 60), "crossing": (48, 16)}
# This workload tests prefilling a next set, which needs the prefix cache.
CACHED = "crossing"
LONGEST_QUICK = 131_072
TARGETS = (0.02, 0.1, 0.4)
PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit code.

    Returns:
        The exit code: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.

    Raises:
        SimulationError: if a scheduler is stuck or loses a token, which no input should cause.
    """
    return command.run("simulate", lambda: _run(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="simulate", description=__doc__)
    add = parser.add_argument
    add(
        "--workload",
        action="append",
        choices=tuple(REQUESTS),
        help="workload to simulate; repeatable (default: all)",
    )
    add("--model", default="mistral-7b", help="shape of the model: mistral-7b or llama2-7b (default: mistral-7b)")
    add(
        "--gpu",
        default="A100-80GB",
        metavar="KIND",
        help="kind of GPU, as for ropeswitch plan (default: A100-80GB)",
    )
    add(
        "--gpus",
        type=flag(whole, 1, 1024),
        default=16,
        metavar="N",
        help="number of GPUs, tensor parallel (default: 16)",
    )
    add("--gpu-file", metavar="FILE", help="TOML file with more kinds of GPU, as for ropeswitch plan")
    add(
        "--requests",
        type=flag(whole, 2, 100_000),
        metavar="N",
        help="number of short requests (default: depends on the workload, 48 to 2000)",
    )
    add(
        "--longest",
        type=flag(whole, 8192, 2_096_640),
        metavar="TOKENS",
        help="tokens of the longest prompt (default: 2096640)",
    )
    add(
        "--load",
        type=flag(number, 0.01, 10),
        default=0.65,
        help="share of time the cluster is busy (default: 0.65)",
    )
    add(
        "--targets",
        type=command.targets,
        default=TARGETS,
        metavar="S,S",
        help="our step latency targets to sweep, in seconds (default: 0.02,0.1,0.4)",
    )
    add("--seed", type=flag(whole, 0, 2**31), default=0, help="random seed for requests and noise (default: 0)")
    add(
        "--noise",
        type=flag(number, 0, 1),
        default=0.0,
        metavar="X",
        help="relative spread of step times (default: 0)",
    )
    add(
        "--async",
        dest="asynchronous",
        action="store_true",
        help="use asynchronous scheduling, which plans each step while the previous one runs",
    )
    add(
        "--prefix-caching",
        action="store_true",
        help="enable prefix caching; hashing takes seconds per million prompt tokens",
    )
    add("--quick", action="store_true", help="finish in seconds: fewer requests and settings, prompts up to 128k")
    add("--no-plots", action="store_true", help="print only the tables")
    add(
        "--out",
        type=Path,
        default=Path("simulation"),
        metavar="DIR",
        help="folder for plots and figures (default: simulation)",
    )
    return parser


def _run(args: argparse.Namespace) -> None:
    from ropeswitch.deploy.plan import gpus
    from ropeswitch.loadtests.simulation.cluster import LONGEST_PROMPT, make_cluster
    from ropeswitch.loadtests.simulation.costs import StepCosts
    from ropeswitch.loadtests.simulation.workloads import Size, make_workload

    cluster = make_cluster(args.model, gpus.choose(gpus.load(args.gpu_file), args.gpu), args.gpus)
    longest = args.longest or (LONGEST_QUICK if args.quick else LONGEST_PROMPT)
    command.check_fits(cluster, longest)
    args.out.mkdir(parents=True, exist_ok=True)
    _say("loading vLLM")
    from ropeswitch.loadtests.simulation.policies import Builder, Options

    costs = StepCosts(cluster)
    options = Options(args.asynchronous, args.prefix_caching, args.noise, args.seed)
    print(_about(cluster, costs, options), flush=True)
    results: dict[str, Any] = {"gpus": args.gpus, "gpu": asdict(cluster.gpu), "model": args.model}
    results |= {"achieved": asdict(costs.achieved), "options": asdict(options), "load": args.load, "workloads": {}}
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(cluster, costs, Path(folder))
        for name in args.workload or REQUESTS:
            size = Size(args.requests or REQUESTS[name][args.quick], longest, args.load, args.seed)
            workload = make_workload(name, cluster, costs, size)
            results["workloads"][name] = _compare(builder, workload, options, args)
            (args.out / "figures.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\nfigures{'' if args.no_plots else ' and plots'}: {args.out}")


def _compare(builder: "Builder", workload: "Workload", options: "Options", args: argparse.Namespace) -> list[Any]:
    """Run every policy on a workload, print its table, draw its plot, and return the figures for the JSON file."""
    from ropeswitch.loadtests.simulation import report
    from ropeswitch.loadtests.simulation.records import SimulationError

    runs: list[report.Figures] = []
    outcomes: dict[Policy, Outcome] = {}
    if workload.name == CACHED:
        options = replace(options, prefix_caching=True)
    for policy in _policies(builder.cluster, args):
        started = time.monotonic()
        simulation = builder.simulation(policy, workload, options)
        simulation.watch = _progress(f"{workload.name}, {policy}", workload.arrivals[-1].at)
        try:
            outcome = simulation.run()
        except SimulationError as error:
            raise SimulationError(f"{workload.name}, {policy}, at {simulation.clock.now:.3f} s: {error}") from error
        runs.append(report.figures(policy, outcome))
        took = time.monotonic() - started
        _say(f"{workload.name}, {policy}: {outcome.seconds:.0f} s in {outcome.steps} steps, simulated in {took:.1f} s")
        outcomes[policy] = outcome
    title = f"{workload.name}: {len(workload.arrivals)} requests, {workload.about}"
    print(f"\n{title}\n{report.table(runs)}", flush=True)
    if not args.no_plots:
        from ropeswitch.loadtests.simulation.plots import draw

        first = {run.policy.kind: run.policy for run in reversed(report.shown(runs))}
        drawn = {first[kind]: outcomes[first[kind]] for kind in ("default", "tuned", "ours") if kind in first}
        draw(args.out / f"{workload.name}.png", title, runs, drawn)
    return [report.as_json(run) for run in runs]


def _policies(cluster: "Cluster", args: argparse.Namespace) -> list["Policy"]:
    from ropeswitch.loadtests.simulation.policies import ours, stock_default, stock_tuned

    tuned, targets = stock_tuned(), args.targets
    if args.quick:
        tuned, targets = tuned[1:4:2], ()
    return [stock_default(cluster.gpu), *tuned, *(ours(cluster.gpu, target) for target in (None, *targets))]


def _about(cluster: "Cluster", costs: "StepCosts", options: "Options") -> str:
    achieved = ", ".join(f"{name} {value:g}" for name, value in asdict(costs.achieved).items())
    return (
        f"ESTIMATES from datasheet rates, not measurements: {cluster.model} on {cluster.gpus} x {cluster.gpu.name}, tensor "
        f"parallel, {cluster.kv_tokens} tokens of KV; {'asynchronous' if options.asynchronous else 'synchronous'}\n"
        f"assumed: {achieved} (docs/simulation.md)\n"
        "Times to first token are p50 / p99 / max in seconds, by prompt length (number of requests); other times in seconds."
    )


def _progress(what: str, last_arrival: float) -> Callable[["Step"], None]:
    printed = time.monotonic()

    def watch(step: "Step") -> None:
        nonlocal printed
        if time.monotonic() - printed > PROGRESS_SECONDS:
            printed = time.monotonic()
            _say(f"{what}: at {step.start:.0f} s; the last request arrives at {last_arrival:.0f} s")

    return watch


def _say(message: str) -> None:
    print(f"simulate: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
