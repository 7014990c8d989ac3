"""Length-aware scheduling against stock vLLM: one long prompt, and short requests beside it, alternating in one run.

Every measurement starts an engine in a process of its own, on one random Phi-3 that this script makes, and ends it: idle
engines would disturb it. Each is added to measurements.jsonl, so that the same command goes on after an interruption; remove
that file after a change to the code. The tables go to stdout, two plots beside the measurements.

Phases: sweep, every setting of stock and of ours once; rounds, the best of them in turns; alone, the long prompt with
nothing beside it; crossing, a request that crosses the limit of 8192 tokens; burst, 64 short requests and a long one.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.engine import make_checkpoint
from ropeswitch.loadtests.scheduling.curves import Point, best, nearest_rank, points
from ropeswitch.loadtests.scheduling.engine import Side
from ropeswitch.loadtests.scheduling.measurements import Measurements
from ropeswitch.loadtests.scheduling.plots import draw
from ropeswitch.loadtests.scheduling.report import OTHERS, report
from ropeswitch.loadtests.scheduling.settings import (
    CROSSING,
    CROSSING_UNCACHED,
    HEADS,
    INTERMEDIATE,
    LAYERS,
    MAXIMUM,
    OURS,
    PROMPTS,
    STOCK,
    TARGETS,
    WINDOW,
    Setting,
    ours,
    tuned,
)

PHASES = ("sweep", "rounds", "alone", "crossing", "burst")


class Bench:
    """Runs phases on one checkpoint and keeps what they measure."""

    def __init__(self, args: argparse.Namespace, checkpoint: str, measurements: Measurements) -> None:
        self._args, self._checkpoint, self._kept = args, checkpoint, measurements
        self._mixed = {"prompt": args.prompt, "rate": args.rate}

    def run(self, phase: str) -> None:
        long = {"prompt": self._args.prompt}
        if phase == "sweep":
            for setting in [STOCK, *tuned(), *ours(self._args.targets)]:
                self._measure(phase, [setting], 1, "mixed", self._mixed)
        elif phase == "rounds":
            settings = [STOCK, *self._best(), *ours(self._args.targets)]
            self._measure(phase, settings, self._args.rounds, "mixed", self._mixed)
        elif phase == "alone":
            self._measure(phase, [STOCK, OURS], max(self._args.rounds, 5), "alone", long)
        elif phase == "crossing":
            self._measure(phase, [CROSSING, CROSSING_UNCACHED], self._args.rounds, "crossing", {})
        else:
            self._measure(phase, [STOCK, OURS], self._args.rounds, "burst", long)

    def _best(self) -> list[Setting]:
        """The tuned stock settings that the sweep found best, which are three."""
        by_name = {setting.name: setting for setting in tuned()}
        found: list[Point] = points(
            record for record in self._kept.records if record["phase"] == "sweep" and record["setting"] in by_name
        )
        if missing := sorted(by_name.keys() - {point.setting for point in found}):
            sys.exit(f"bench_scheduling: rounds need the whole sweep, which lacks {', '.join(missing)}: run it first")
        return [by_name[point.setting] for point in best(found)]

    def _measure(
        self, phase: str, settings: Sequence[Setting], rounds: int, workload: str, parameters: dict[str, Any]
    ) -> None:
        """Run a workload on every setting in every round that is not measured yet, in turns."""
        for turn in range(rounds):
            for setting in settings if turn % 2 == 0 else reversed(settings):
                if not self._kept.has(phase, setting, turn):
                    step = f"{phase}: round {turn + 1} of {rounds}, {setting.name}"
                    self._kept.add(phase, setting, turn, self._undisturbed(setting, workload, turn, parameters, step))

    def _undisturbed(
        self, setting: Setting, workload: str, turn: int, parameters: dict[str, Any], step: str
    ) -> dict[str, Any]:
        """One measurement, made again while other work takes the cores, but not more often than was asked for."""
        for attempt in range(self._args.retries + 1):
            result = self._one(setting, workload, seed=1 + turn + 1000 * attempt, **parameters)
            say(f"{step}: {summary(result)}")
            if result["others"] <= OTHERS:
                break
        return result

    def _one(self, setting: Setting, workload: str, **parameters: Any) -> dict[str, Any]:
        with Side(self._checkpoint, setting, self._args.compiled) as side:
            # A quarter of the prompt: every path has run, and what adapts to the machine has seen it.
            side.run("mixed", prompt=self._args.prompt // 4, rate=self._args.rate, seed=0)
            return side.run(workload, **parameters)


def summary(result: dict[str, Any]) -> str:
    """One measurement in a few words, for the progress line."""
    words = []
    if "gaps" in result:
        words.append(f"worst gap {max(result['gaps']):.3f} s, the other request's {max(result['other']):.3f} s")
    if "long" in result:
        words.append(f"long prompt {result['long']:.2f} s")
    if result.get("ttfts"):
        shorts = f"{len(result['ttfts'])} short requests, p99 {nearest_rank(result['ttfts'], 99):.3f} s"
        words.append(f"{shorts}, worst {max(result['ttfts']):.3f} s")
    if "worst_gap" in result:
        words.append(f"worst gap {result['worst_gap']:.3f} s")
    if result["others"] > OTHERS:
        words.append(f"DISTURBED: other work took {result['others']:.0%} of the cores")
    return ", ".join(words)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    least, most = PROMPTS
    parser.add_argument(
        "--prompt",
        type=int,
        default=24576,
        help=f"tokens of the long prompt, {least} to {most} (default: %(default)s)",
    )
    parser.add_argument(
        "--rate", type=float, default=5.0, help="short requests a second beside it (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds of every phase but the sweep, which has one; the long prompt alone has at least 5 (default: 5)",
    )
    parser.add_argument(
        "--targets",
        type=float,
        nargs="+",
        default=list(TARGETS),
        metavar="SECONDS",
        help="our step latency targets beside our default, in seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=2,
        help=f"how often a run is made again beside which other work took over {OTHERS:.0%}% of the cores; the last one "
        "is kept (default: %(default)s)",
    )
    parser.add_argument("--compiled", action="store_true", help="compile the model, vLLM's default, instead of eager")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-scheduling"),
        help="where measurements and plots are kept; what is measured there is not measured again (default: %(default)s)",
    )
    parser.add_argument(
        "--only", action="append", choices=PHASES, help="run this phase alone; can be given more than once"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing; tables and plots of what is there")
    parser.add_argument(
        "--bound", type=float, metavar="SECONDS", help="what nothing in the burst may wait longer than, as documented"
    )
    args = parser.parse_args(arguments)
    if not least <= args.prompt <= most:
        parser.error(f"--prompt: {args.prompt} is not between {least} and {most}")
    for name in ("rate", "rounds"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name}: {getattr(args, name)} is not above 0")
    if args.retries < 0:
        parser.error(f"--retries: {args.retries} is below 0")
    if not all(target > 0 for target in args.targets):
        parser.error(f"--targets: {args.targets} are not all above 0 seconds")
    return args


def main() -> None:
    args = parse()
    mode = "compiled" if args.compiled else "eager"
    args.out.mkdir(parents=True, exist_ok=True)
    measurements = Measurements(
        args.out / "measurements.jsonl", {"prompt": args.prompt, "rate": args.rate, "mode": mode}
    )
    try:
        if not args.report:
            with tempfile.TemporaryDirectory() as folder:
                make_checkpoint(
                    Path(folder),
                    layers=LAYERS,
                    heads=HEADS,
                    intermediate=INTERMEDIATE,
                    window=WINDOW,
                    maximum=MAXIMUM,
                )
                bench = Bench(args, folder, measurements)
                for phase in args.only or PHASES:
                    bench.run(phase)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        sys.exit(130)
    if not measurements.records:
        sys.exit(f"bench_scheduling: {measurements.path} has no measurement with these options yet")
    print(f"{args.prompt} tokens, {args.rate:g} short requests a second, {mode}\n")
    print(report(measurements.records, args.bound))
    if any(record["phase"] in ("sweep", "rounds") for record in measurements.records):
        for path in draw(measurements.records, args.out):
            say(f"wrote {path}")


if __name__ == "__main__":
    main()
