"""Compares length-aware scheduling with stock vLLM's settings, alternating in one run.

Each engine runs alone in its own process, because idle engines would disturb it, on a random Phi-3 that this script creates.
Measurements are appended to measurements.jsonl, so the same command resumes after an interruption; remove that file after a
change to the code. Tables go to stdout, plots next to the measurements.

Phases: alone, only the long prompt; front, every setting on four workloads; exactness, requests that cross the limit of
2,048 tokens together; crossing, one such request; burst, 64 short requests and a long one.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.engine import make_checkpoint
from ropeswitch.loadtests.scheduling import exactness
from ropeswitch.loadtests.scheduling.arrivals import WORKLOADS
from ropeswitch.loadtests.scheduling.engine import Side
from ropeswitch.loadtests.scheduling.measurements import Measurements
from ropeswitch.loadtests.scheduling.plots import draw
from ropeswitch.loadtests.scheduling.report import OTHERS, front_runs, report
from ropeswitch.loadtests.scheduling.settings import (
    CROSSING,
    CROSSING_UNCACHED,
    HEADS,
    INTERMEDIATE,
    LAYERS,
    MAXIMUM,
    OURS,
    OURS_IN_ORDER,
    PROMPTS,
    STOCK,
    TARGETS,
    WINDOW,
    Setting,
    ours,
    stock,
)

PHASES = ("alone", "front", "exactness", "crossing", "burst")
# The ladder policy of requests that cross the limit, and whether to prefill as many prompts after them.
EXACTNESS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    STOCK.name: [
        (exactness.STOCK, {"policy": None, "again": False}),
        (exactness.ARITHMETIC, {"policy": None, "again": True}),
    ],
    OURS.name: [
        (exactness.LENGTH, {"policy": "length", "again": False}),
        (exactness.RESERVE, {"policy": "reserve", "again": False}),
    ],
    OURS_IN_ORDER.name: [
        (exactness.LENGTH_IN_ORDER, {"policy": "length", "again": False}),
        (exactness.RESERVE_IN_ORDER, {"policy": "reserve", "again": False}),
    ],
}


class Bench:
    """Runs phases on one checkpoint and stores their measurements."""

    def __init__(self, args: argparse.Namespace, checkpoint: str, measurements: Measurements) -> None:
        self._args, self._checkpoint, self._kept = args, checkpoint, measurements
        self._long = {"prompt": args.prompt}

    def run(self, phase: str) -> None:
        if phase == "alone":
            self._measure(phase, [STOCK, OURS], max(self._args.rounds, 5), "alone", self._long)
        elif phase == "front":
            self._front()
        elif phase == "exactness":
            self._exactness()
        elif phase == "crossing":
            self._measure(phase, [CROSSING, CROSSING_UNCACHED], self._args.rounds, "crossing", {})
        else:
            self._measure(phase, [STOCK, OURS], self._args.rounds, "burst", self._long)

    def _front(self) -> None:
        # Use only the first five rounds, so that later ones do not change the workloads.
        alone = [
            r["result"]["long"] for r in self._kept.records if (r["phase"], r["setting"]) == ("alone", STOCK.name)
        ][:5]
        if not alone:
            sys.exit(
                "bench-scheduling: the front needs stock's time for the long prompt alone; run the phase alone first"
            )
        parameters = self._long | {"alone": statistics.median(alone)}
        tasks = [(f"front {name}", "served", parameters | {"name": name}) for name in WORKLOADS]
        self._shared([(setting, tasks) for setting in [*stock(), *ours(self._args.targets)]])

    def _exactness(self) -> None:
        self._shared(
            [
                (setting, [(f"exactness {name}", "exactness", each) for name, each in EXACTNESS[setting.name]])
                for setting in (STOCK, OURS, OURS_IN_ORDER)
            ]
        )

    def _shared(self, tasks: Sequence[tuple[Setting, Sequence[tuple[str, str, dict[str, Any]]]]]) -> None:
        """Run each setting's (phase, workload, parameters), alternating, with one engine per setting and round."""
        for turn in range(self._args.rounds):
            for setting, wanted in tasks if turn % 2 == 0 else reversed(tasks):
                if missing := [task for task in wanted if not self._kept.has(task[0], setting, turn)]:
                    with self._side(setting) as side:
                        for phase, workload, parameters in missing:
                            result = side.run(workload, seed=1 + turn, **parameters)
                            say(f"{phase}: round {turn + 1} of {self._args.rounds}, {setting.name}: {summary(result)}")
                            self._kept.add(phase, setting, turn, result)

    def _measure(
        self, phase: str, settings: Sequence[Setting], rounds: int, workload: str, parameters: dict[str, Any]
    ) -> None:
        """Run a workload on every setting, alternating, in every round that is not measured yet."""
        for turn in range(rounds):
            for setting in settings if turn % 2 == 0 else reversed(settings):
                if not self._kept.has(phase, setting, turn):
                    step = f"{phase}: round {turn + 1} of {rounds}, {setting.name}"
                    self._kept.add(phase, setting, turn, self._undisturbed(setting, workload, turn, parameters, step))

    def _undisturbed(
        self, setting: Setting, workload: str, turn: int, parameters: dict[str, Any], step: str
    ) -> dict[str, Any]:
        """Measure once, and repeat up to ``--retries`` times while other processes use the cores."""
        for attempt in range(self._args.retries + 1):
            result = self._one(setting, workload, seed=1 + turn + 1000 * attempt, **parameters)
            say(f"{step}: {summary(result)}")
            if result["others"] <= OTHERS:
                break
        return result

    def _one(self, setting: Setting, workload: str, **parameters: Any) -> dict[str, Any]:
        with self._side(setting) as side:
            return side.run(workload, **parameters)

    @contextmanager
    def _side(self, setting: Setting) -> Iterator[Side]:
        """Start an engine and warm it up with prefills and decodes, so that adaptive parts know the machine."""
        with Side(self._checkpoint, setting, self._args.compiled) as side:
            side.run("served", name="single", prompt=self._args.prompt // 4, alone=0.5, seed=0)
            yield side


SUMMARY = {
    "long": "long prompt {:.2f} s",
    "firsts": "slowest first token of a short request {:.3f} s",
    "ttfts": "slowest first token of a short request {:.3f} s",
    "gap": "worst gap {:.3f} s",
    "recomputed": "{} tokens recomputed",
}


def summary(result: dict[str, Any]) -> str:
    """Return one measurement as text for the progress line."""
    words = []
    if "gaps" in result:
        words.append(f"worst gap {max(result['gaps']):.3f} s, the other request's {max(result['other']):.3f} s")
    for name, words_of in SUMMARY.items():
        if name in result:
            value = result[name]
            words.append(words_of.format(max(value) if isinstance(value, list) else value))
    if result["others"] > OTHERS:
        words.append(f"DISTURBED: other processes used {result['others']:.0%} of the cores")
    return ", ".join(words)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    least, most = PROMPTS
    parser.add_argument(
        "--prompt",
        type=int,
        default=6144,
        help=f"length of the long prompt in tokens, {least} to {most} (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds per phase; the phase alone runs at least 5 (default: 5)",
    )
    parser.add_argument(
        "--targets",
        type=float,
        nargs="+",
        default=list(TARGETS),
        metavar="SECONDS",
        help="our step latency targets in seconds, in addition to our default (default: %(default)s)",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=2,
        help="how often to repeat a run of the phases alone, crossing and burst while other processes use over "
        f"{OTHERS:.0%}% of the cores; the last run is kept (default: %(default)s)",
    )
    parser.add_argument(
        "--compiled", action="store_true", help="compile the model (vLLM's default) instead of running it eagerly"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-scheduling"),
        help="folder for measurements and plots; existing measurements are reused (default: %(default)s)",
    )
    parser.add_argument("--only", action="append", choices=PHASES, help="run only this phase; repeatable")
    parser.add_argument(
        "--report", action="store_true", help="measure nothing; print tables and plots of existing measurements"
    )
    parser.add_argument(
        "--bound", type=float, metavar="SECONDS", help="documented maximum wait in the burst, in seconds"
    )
    args = parser.parse_args(arguments)
    if not least <= args.prompt <= most:
        parser.error(f"--prompt: {args.prompt} must be from {least} to {most}")
    if args.rounds < 1:
        parser.error(f"--rounds: {args.rounds} must be at least 1")
    if args.retries < 0:
        parser.error(f"--retries: {args.retries} must be at least 0")
    if not all(0 < target <= 60 for target in args.targets):
        parser.error(f"--targets: {args.targets} must all be above 0 and at most 60 seconds")
    return args


def main() -> None:
    args = parse()
    mode = "compiled" if args.compiled else "eager"
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        measurements = Measurements(args.out / "measurements.jsonl", {"prompt": args.prompt, "mode": mode})
    except ValueError as error:
        print(f"bench-scheduling: error: {error}", file=sys.stderr)
        sys.exit(2)
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
        say("interrupted; the same command resumes")
        sys.exit(130)
    if not measurements.records:
        sys.exit(f"bench-scheduling: {measurements.path} has no measurements with these options yet")
    print(f"{args.prompt} tokens, {mode}\n")
    names = [setting.name for setting in [*stock(), *ours(args.targets)]]
    print(report(measurements.records, names, args.bound))
    if workloads := {name: runs for name, runs in front_runs(measurements.records, names).items() if runs}:
        say(f"wrote {draw(workloads, args.out / 'front.png')}")


if __name__ == "__main__":
    main()
