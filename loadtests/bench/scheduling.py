"""Compares length-aware scheduling with stock vLLM's settings, alternating in one run.

Each engine runs alone in its own process, because idle engines would disturb it, on a random Phi-3 that this script creates.
First the long prompt alone, then every setting on four workloads. Tables go to stdout, measurements to --out as JSON lines.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.gpu_engine import write_config
from ropeswitch.loadtests.bench.scheduled import SHAPE, WORKLOADS, Setting, serve
from ropeswitch.loadtests.bench.sides import Side

STOCK = Setting("stock default")
OURS = Setting("ours default", ours=True)
# Stock's defaults, and its ways to limit a long prompt's share of a step.
SETTINGS = (
    STOCK,
    Setting("batched tokens 256", {"max_num_batched_tokens": 256}),
    Setting("threshold 64", {"long_prefill_token_threshold": 64}),
    Setting("threshold 128", {"long_prefill_token_threshold": 128}),
    Setting(
        "threshold 256, adaptive",
        {"long_prefill_token_threshold": 256, "long_prefill_token_threshold_adaptive": True},
    ),
    Setting("threshold 256, priority", {"long_prefill_token_threshold": 256, "scheduling_policy": "priority"}),
    OURS,
)
# Minimum and maximum tokens of the long prompt; short ones are for trial runs.
PROMPTS = (1024, 32768)
# Share of the cores used by other processes above which a run's times are unreliable.
OTHERS = 0.05
FIGURES = ("p99 first token", "worst gap", "long prompts done")
# Ratios that count as equal, and as 20% better.
SAME, BETTER = 1.02, 0.8


@dataclass(frozen=True)
class Measured:
    """One setting's run of a workload with one seed; its figures are those of :func:`scheduled.served`."""

    setting: str
    ours: bool
    firsts: Sequence[float]
    gap: float
    long: float


def figures(runs: Iterable[Measured]) -> dict[str, tuple[float, float, float]]:
    """Return every setting's :data:`FIGURES`: the 99th percentile over all short requests, and medians of the rest."""
    grouped: dict[str, list[Measured]] = {}
    for run in runs:
        grouped.setdefault(run.setting, []).append(run)
    found = {}
    for name, each in grouped.items():
        firsts = sorted(first for run in each for first in run.firsts)
        gap, long = (statistics.median(getattr(run, what) for run in each) for what in ("gap", "long"))
        found[name] = (firsts[math.ceil(0.99 * len(firsts)) - 1], gap, long)
    return found


def answer(stock: tuple[float, ...], ours: Mapping[str, tuple[float, ...]]) -> tuple[str, tuple[float, ...], bool]:
    """Return the best of our settings against one of stock's: its name, ratios by figure, and whether it answers it.

    It answers if it is at most 2% worse in every figure and 20% better in one. If none does, it is the one whose worst
    figure is best.
    """
    ratios = {name: tuple(a / b for a, b in zip(each, stock, strict=True)) for name, each in ours.items()}
    good = [name for name in ratios if max(ratios[name]) <= SAME]
    best = min(good, key=lambda name: min(ratios[name])) if good else min(ratios, key=lambda name: max(ratios[name]))
    return best, ratios[best], bool(good) and min(ratios[best]) <= BETTER


def report(runs: Sequence[Measured]) -> str:
    """Return the figures of one workload's settings, and our answer to each of stock's, as Markdown."""
    found, names = figures(runs), {run.setting for run in runs if run.ours}
    rows = [
        [name, *(f"{value:.3f}" for value in found[name])] for name in sorted(found, key=lambda name: name in names)
    ]
    parts = [table(["setting", *(f"{figure} s" for figure in FIGURES)], rows)]
    rows = []
    for name in found.keys() - names:
        best, ratios, met = answer(found[name], {each: found[each] for each in names})
        rows.append([name, best, *(f"{ratio:.2f}" for ratio in ratios), "yes" if met else "**no**"])
    parts.append(table(["stock", "ours", *(f"{figure}, ours / stock" for figure in FIGURES), "answered"], sorted(rows)))
    return "\n\n".join(parts)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


class Bench:
    """Measures settings on one checkpoint, and appends each result to a file."""

    def __init__(self, args: argparse.Namespace, checkpoint: str) -> None:
        self._args, self._checkpoint = args, checkpoint
        args.out.parent.mkdir(parents=True, exist_ok=True)

    def measure(self, settings: Sequence[Setting], names: Sequence[str], alone: float) -> dict[str, list[Measured]]:
        """Return the runs of each workload: every setting's engine starts once per round, in alternating order."""
        found: dict[str, list[Measured]] = {name: [] for name in names}
        for turn in range(self._args.rounds):
            for setting in settings if turn % 2 == 0 else reversed(settings):
                with self._side(setting) as side:
                    for name in names:
                        result = side.ask({"name": name, "prompt": self._args.prompt, "alone": alone, "seed": 1 + turn})
                        say(f"{name}: round {turn + 1} of {self._args.rounds}, {setting.name}: {summary(result)}")
                        firsts, gap, long = result["firsts"], result["gap"], result["long"]
                        found[name].append(Measured(setting.name, setting.ours, firsts, gap, long))
                        self._keep({"workload": name, "round": turn, **asdict(setting), "result": result})
        return found

    def _keep(self, line: dict[str, Any]) -> None:
        with self._args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"prompt": self._args.prompt, **line}) + "\n")

    @contextmanager
    def _side(self, setting: Setting) -> Iterator[Side]:
        """Start an engine and warm it up with prefills and decodes, so that adaptive parts know the machine."""
        side = Side(serve, self._checkpoint, setting)
        try:
            side.ask({"name": "single", "prompt": self._args.prompt // 4, "alone": 0.5, "seed": 0})
            yield side
        finally:
            side.stop()


def summary(result: dict[str, Any]) -> str:
    """Return one measurement as text for the progress line."""
    first = f"slowest first token {max(result['firsts']):.3f} s, " if result["firsts"] else ""
    said = f"{first}worst gap {result['gap']:.3f} s, long prompts {result['long']:.2f} s"
    if result["others"] > OTHERS:
        said += f"; DISTURBED: other processes used {result['others']:.0%} of the cores"
    return said


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    least, most = PROMPTS
    add = parser.add_argument
    add("--prompt", type=int, default=6144, help=f"tokens of the long prompt, {least} to {most} (default: %(default)s)")
    add("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    add("--targets", type=float, nargs="+", default=[0.03, 0.06], metavar="SECONDS",
        help="our step latency targets, in addition to our default (default: %(default)s)")  # fmt: skip
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="workloads (default: all)")
    add(
        "--out",
        type=Path,
        default=Path("build/bench-scheduling.jsonl"),
        help="file for measurements (default: %(default)s)",
    )
    args = parser.parse_args(arguments)
    if not least <= args.prompt <= most:
        parser.error(f"--prompt: {args.prompt} must be from {least} to {most}")
    if args.rounds < 1:
        parser.error(f"--rounds: {args.rounds} must be at least 1")
    if not all(0 < target <= 60 for target in args.targets):
        parser.error(f"--targets: {args.targets} must all be above 0 and at most 60 seconds")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    targets = [Setting(f"ours {1000 * target:g} ms", ours=True, target=target) for target in args.targets]
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), SHAPE)
        bench = Bench(args, folder)
        alone = bench.measure([STOCK, OURS], ["alone"], 0.0)["alone"]
        stock, ours = (statistics.median(run.long for run in alone if run.ours is side) for side in (False, True))
        print(f"{args.prompt} tokens alone: stock {stock:.3f} s, ours {ours:.3f} s, ours / stock {ours / stock:.3f}\n")
        for name, runs in bench.measure([*SETTINGS, *targets], args.workloads, stock).items():
            print(f"### {name}\n\n{report(runs)}\n", flush=True)


if __name__ == "__main__":
    main()
