"""Measures the host time our schedulers add to stock vLLM's ``schedule()``, per step and without a model.

Every running request decodes. Stock's scheduler, the switch alone and length-aware scheduling alternate.
"""

import argparse
import gc
import random
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from tests.simulated import Arrival, Builder

KINDS = {"stock": "stock", "core": "core", "length-aware": "ours"}
RUNNING = (64, 256, 1024)
# Maximum time length-aware scheduling may add to stock's schedule(), in ms, by running requests.
TARGETS = {64: 0.1, 256: 0.2, 1024: 0.5}
# What `vllm serve` chooses for an H100.
TOKENS, SEQUENCES = 8192, 1024
BLOCKS = 150_000
# High enough that every request may outgrow its set, so the scheduler checks each of them.
MOST_TOKENS = 100_000
WARM_UP = 30
STEP_SECONDS = 0.02


@dataclass
class Driven:
    """One scheduler with its running requests, driven like vLLM's engine core.

    ``planning`` and ``updating`` are CPU seconds in ``schedule()`` and ``update_from_output()``: cores may be shared.
    """

    builder: Builder
    kind: str
    running: int
    asynchronous: bool
    planning: float = 0.0
    updating: float = 0.0
    flights: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        simulation = self.builder.simulation(
            KINDS[self.kind],
            (),
            BLOCKS,
            tokens=TOKENS,
            sequences=SEQUENCES,
            asynchronous=self.asynchronous,
            caching=True,
        )
        self.scheduler, self.clock = simulation.scheduler, simulation.clock
        self.depth, self.noise = simulation.depth, random.Random(0)
        dice = random.Random(0)
        # Longest first, as length-aware scheduling keeps them: any other order would charge it for CPU cache misses.
        lengths = sorted((dice.randint(20, 600) for _ in range(self.running)), reverse=True)
        for i, length in enumerate(lengths):
            prompt = [1] * length
            self.scheduler.add_request(simulation.make_request(str(i), Arrival(0.0, len(prompt), MOST_TOKENS), prompt))
        while len(self.scheduler.running) < self.running or any(r.is_prefill_chunk for r in self.scheduler.running):
            self.step()
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        """Plan a step, and process the oldest result once the maximum number of steps is in flight."""
        start = thread_time()
        plan = self.scheduler.schedule()
        self.planning += thread_time() - start
        names = list(plan.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[name].is_prefill_chunk else [1] for name in names]
        self.flights.append((plan, ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)))
        if len(self.flights) == self.depth:
            self.clock.advance(self.clock.now + STEP_SECONDS * self.noise.lognormvariate(0.0, 0.03))
            start = thread_time()
            self.scheduler.update_from_output(*self.flights.popleft())
            self.updating += thread_time() - start

    def measure(self, steps: int) -> tuple[float, float]:
        """Return the milliseconds per step of ``schedule()`` and of ``update_from_output()``."""
        self.planning = self.updating = 0.0
        for _ in range(steps):
            self.step()
        return 1000 * self.planning / steps, 1000 * self.updating / steps


def compare(builder: Builder, running: int, asynchronous: bool, rounds: int, steps: int) -> list[str]:
    """Return the table's line for one number of running requests: medians over the rounds."""
    driven = {kind: Driven(builder, kind, running, asynchronous) for kind in KINDS}
    gc.collect()
    gc.freeze()
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, each in driven.items():
            found[kind].append(each.measure(steps))
    line = [str(running), "async" if asynchronous else "sync"]
    for which in (0, 1):
        stock = [round_[which] for round_ in found["stock"]]
        line.append(f"{statistics.median(stock):.3f}")
        for kind in ("core", "length-aware"):
            added = [ours[which] - theirs for ours, theirs in zip(found[kind], stock, strict=True)]
            line.append(f"{statistics.median(added):+.3f}")
        if which == 0:
            line.append(f"{TARGETS[running]:.1f}" if running in TARGETS else "")
    gc.unfreeze()
    return line


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-schedule", description=__doc__)
    parser.add_argument(
        "--running", type=int, nargs="+", default=RUNNING, help="numbers of running requests (default: 64 256 1024)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="alternations, at least 5 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=24, help="steps per scheduler and round (default: %(default)s)")
    parser.add_argument("--synchronous", action="store_true", help="plan each step after the previous step's result")
    args = parser.parse_args(argv)
    if args.rounds < 5:
        parser.error(f"--rounds: {args.rounds} is too few for a median; use at least 5")
    print("CPU milliseconds per step: stock's schedule() and update_from_output(), and the time ours adds.")
    print("| running | scheduler | schedule() | core | length-aware | target | update | core | length-aware |")
    print("| --- " * 9 + "|")
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        for running in args.running:
            line = compare(builder, running, not args.synchronous, args.rounds, args.steps)
            print(f"| {' | '.join(line)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
