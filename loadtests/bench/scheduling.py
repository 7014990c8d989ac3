"""Compares length-aware scheduling with stock vLLM's settings, alternating in one run.

Each engine runs alone in its own process, because idle engines would disturb it, on a random Phi-3 that this script creates.
Measurements are appended to measurements.jsonl, so the same command resumes after an interruption; remove that file after a
change to the code. Tables go to stdout, plots next to the measurements.

Phases: alone, only the long prompt; front, every setting on four workloads; exactness, requests that cross the limit of
2,048 tokens together.
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

from ropeswitch.factors.errors import InputError
from ropeswitch.loadtests.bench.engine import make_checkpoint
from ropeswitch.loadtests.bench.sides import Side
from ropeswitch.loadtests.runs import Runs
from ropeswitch.loadtests.scheduling import exactness
from ropeswitch.loadtests.scheduling.arrivals import WORKLOADS
from ropeswitch.loadtests.scheduling.engine import serve
from ropeswitch.loadtests.scheduling.plots import draw
from ropeswitch.loadtests.scheduling.report import OTHERS, front_runs, report
from ropeswitch.loadtests.scheduling.settings import (
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
from ropeswitch.loadtests.scheduling.tables import Measurement

PHASES = ("alone", "front", "exactness")
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
# Phase, workload and its parameters.
Task = tuple[str, str, dict[str, Any]]


class Bench:
    """Runs phases on one checkpoint and stores their measurements."""

    def __init__(self, args: argparse.Namespace, checkpoint: str, kept: Runs[Measurement]) -> None:
        self._args, self._checkpoint, self._kept = args, checkpoint, kept
        self._long = {"prompt": args.prompt}

    def run(self, phase: str) -> None:
        if phase == "alone":
            tasks = [("alone", "alone", self._long)]
            self._measure([(setting, tasks) for setting in (STOCK, OURS)], max(self._args.rounds, 5))
        elif phase == "front":
            self._front()
        else:
            self._exactness()

    def _front(self) -> None:
        # Use only the first five rounds, so that later ones do not change the workloads.
        found = [each for each in self._kept.found if (each.phase, each.setting) == ("alone", STOCK.name)]
        alone = [each.result["long"] for each in found[:5]]
        if not alone:
            sys.exit(
                "bench-scheduling: the front needs stock's time for the long prompt alone; run the phase alone first"
            )
        parameters = self._long | {"alone": statistics.median(alone)}
        tasks = [(f"front {name}", "served", parameters | {"name": name}) for name in WORKLOADS]
        self._measure([(setting, tasks) for setting in [*stock(), *ours(self._args.targets)]], self._args.rounds)

    def _exactness(self) -> None:
        tasks = [
            (setting, [(f"exactness {name}", "exactness", each) for name, each in EXACTNESS[setting.name]])
            for setting in (STOCK, OURS, OURS_IN_ORDER)
        ]
        self._measure(tasks, self._args.rounds)

    def _measure(self, tasks: Sequence[tuple[Setting, Sequence[Task]]], rounds: int) -> None:
        """Run each setting's tasks in every round that is not measured yet, with one engine per setting and round."""
        for turn in range(rounds):
            for setting, wanted in tasks if turn % 2 == 0 else reversed(tasks):
                engine: dict[str, Any] = {
                    "setting": setting.name,
                    "ours": setting.ours,
                    "target": setting.target,
                    "arguments": setting.arguments,
                }
                if missing := [task for task in wanted if not self._kept.has(phase=task[0], round=turn, **engine)]:
                    with self._side(setting) as side:
                        for phase, workload, parameters in missing:
                            result = side.ask((workload, {"seed": 1 + turn, **parameters}))
                            say(f"{phase}: round {turn + 1} of {rounds}, {setting.name}: {summary(result)}")
                            self._kept.add(Measurement(phase=phase, round=turn, result=result, **engine))

    @contextmanager
    def _side(self, setting: Setting) -> Iterator[Side]:
        """Start an engine and warm it up with prefills and decodes, so that adaptive parts know the machine."""
        say(f"starting {setting.name}")
        side = Side(serve, self._checkpoint, setting)
        try:
            side.ask(("served", {"name": "single", "prompt": self._args.prompt // 4, "alone": 0.5, "seed": 0}))
            yield side
        finally:
            side.stop()


SUMMARY = {
    "long": "long prompt {:.2f} s",
    "firsts": "slowest first token of a short request {:.3f} s",
    "gap": "worst gap {:.3f} s",
    "recomputed": "{} tokens recomputed",
}


def summary(result: dict[str, Any]) -> str:
    """Return one measurement as text for the progress line."""
    words = []
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
        "--out",
        type=Path,
        default=Path("bench-scheduling"),
        help="folder for measurements and plots; existing measurements are reused (default: %(default)s)",
    )
    parser.add_argument("--only", action="append", choices=PHASES, help="run only this phase; repeatable")
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
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        kept = Runs(args.out / "measurements.jsonl", Measurement, {"prompt": args.prompt})
    except InputError as error:
        print(f"bench-scheduling: error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        with tempfile.TemporaryDirectory() as folder:
            make_checkpoint(
                Path(folder),
                layers=LAYERS,
                heads=HEADS,
                intermediate=INTERMEDIATE,
                window=WINDOW,
                maximum=MAXIMUM,
            )
            bench = Bench(args, folder, kept)
            for phase in args.only or PHASES:
                bench.run(phase)
    except KeyboardInterrupt:
        say("interrupted; the same command resumes")
        sys.exit(130)
    print(f"{args.prompt} tokens\n")
    names = [setting.name for setting in [*stock(), *ours(args.targets)]]
    print(report(kept.found, names))
    if workloads := {name: runs for name, runs in front_runs(kept.found, names).items() if runs}:
        say(f"wrote {draw(workloads, args.out / 'front.png')}")


if __name__ == "__main__":
    main()
