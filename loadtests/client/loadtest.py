"""A complete load test: builds the prompts, alternates runs between the servers and computes the results."""

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.endpoint import Endpoint
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.client.assertions import Assertion, Slo
from ropeswitch.loadtests.client.bands import DEFAULT, Band, bands, bands_of_sets
from ropeswitch.loadtests.client.pieces import KEYS, Text
from ropeswitch.loadtests.client.plan import Bounds, Planned, plan, read_trace
from ropeswitch.loadtests.client.prompts import Composer, Joints, Prompts, build
from ropeswitch.loadtests.client.records import Point, Run, Side, Store
from ropeswitch.loadtests.client.run import execute
from ropeswitch.loadtests.client.sender import Client
from ropeswitch.loadtests.client.workload import Workload

# Tokens of the longest warm-up prompt: enough to warm the server up without taking as long as the run.
WARMUP_LONGEST = 2048
WARMUP_SEED = 1_000_000
MOST_REQUESTS = 10_000_000


@dataclass(frozen=True)
class Options:
    """Settings in addition to the workload: the flags of ``ropeswitch loadtest``."""

    rate: tuple[float, ...]
    concurrency: tuple[int, ...]
    repetitions: int
    seed: int
    scale: float
    longest: int | None
    bands: tuple[Band, ...] | None
    slos: tuple[Slo, ...]
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True)
class LoadTest:
    """A load test that is ready to run, against a target and perhaps a baseline to compare with."""

    client: Client
    target: Endpoint
    baseline: Endpoint | None
    tokenizer: Tokenizer
    composer: Composer
    options: Options

    @property
    def workload(self) -> Workload:
        return self.client.workload

    def limits(self) -> dict[Side, tuple[int, ...]]:
        """Lengths at which each server's factor sets switch."""
        found: dict[Side, tuple[int, ...]] = {"target": self.target.limits[:-1]}
        return found | {"baseline": self.baseline.limits[:-1]} if self.baseline else found

    def bands(self) -> tuple[Band, ...]:
        """Length bands: from the flags, else the workload, else the factor sets."""
        if self.options.bands:
            return self.options.bands
        if named := self.workload.length_bands():
            return tuple(band.scaled(self.options.scale) for band in named)
        return bands_of_sets(self.target.limits) if self.target.limits else bands(DEFAULT)

    def heads(self) -> list[Run]:
        """The runs to execute, in order: the servers alternate, and alternate in going first."""
        sides: tuple[Side, ...] = ("target", "baseline") if self.baseline else ("target",)
        found = []
        for rate, concurrency in self._loads():
            for repetition in range(self.options.repetitions):
                for side in sides if repetition % 2 == 0 else sides[::-1]:
                    name = f"{_names(rate, concurrency)[0]}-{side}-{repetition + 1}"
                    found.append(Run(name, side, rate, concurrency, repetition))
        return found

    def _loads(self) -> list[tuple[float | None, int | None]]:
        arrival = self.workload.arrival
        if arrival.closed:
            return [(None, each) for each in self.options.concurrency or (arrival.closed.concurrency,)]
        if arrival.rated:
            return [(each, None) for each in self.options.rate or (arrival.rated.rate,)]
        return [(None, None)]

    def prepare(self, folder: Path) -> dict[int, Prompts]:
        """Build the prompts of all runs in a folder, by seed, so that errors in them show before the first run."""
        found: dict[int, Prompts] = {}
        for head in self.heads():
            seed = self._seed(head)
            if seed not in found:
                found[seed] = self._prompts(head, seed, False, folder)
        return found

    def run(self, store: Store, prompts: dict[int, Prompts]) -> list[Run]:
        """Execute the runs up to the first that is cut short; prompts are removed with their last run, to free the disk."""
        runs: list[Run] = []
        heads = self.heads()
        for place, head in enumerate(heads):
            endpoint = self.target if head.side == "target" else self.baseline
            assert endpoint is not None, "only a test with a baseline has baseline runs"
            seed = self._seed(head)
            again = any(self._seed(later) == seed for later in heads[place + 1 :])
            sent = prompts[seed] if again else prompts.pop(seed)
            warmup = self._prompts(head, seed + WARMUP_SEED, True, store.folder) if self.workload.warmup else None
            runs.append(asyncio.run(execute(self.client, endpoint, head, sent, warmup, seed, store)))
            if not runs[-1].complete:
                break
        return runs

    def _seed(self, run: Run) -> int:
        """Random seed of a run's prompts.

        Both servers get the same prompts. Each rate and repetition has its own, so that none hits the prefix cache.
        """
        load = _names(run.rate, run.concurrency)[0].encode()
        # SeedSequence makes the streams of neighbouring seeds independent.
        return int(np.random.SeedSequence([self.options.seed, run.repetition, *load]).generate_state(1)[0])

    def _prompts(self, run: Run, seed: int, warmup: bool, folder: Path) -> Prompts:
        count = self.workload.warmup if warmup else self._conversations(run)
        planned = self._plan(count, seed, warmup)
        joints = Joints(self.client.text, self.tokenizer, self.composer)
        return build(folder, planned, self.composer, joints, seed)

    def _conversations(self, run: Run) -> int:
        wanted, seconds = self.workload.requests, self.workload.seconds
        if self.workload.arrival.trace:
            recorded = len(read_trace(Path(self.workload.arrival.trace.file)))
            return recorded if wanted is None else min(wanted, recorded)
        in_time = None
        if seconds is not None and run.rate is not None:
            # A request due exactly at the end is sent. The first burst is due at 0 s, so it is always sent.
            in_time = math.floor(run.rate * seconds * (1 + 1e-9)) or int(self.workload.arrival.bursts is not None)
            if not 0 < in_time <= MOST_REQUESTS:
                made = f"{run.rate:g} requests per second for {seconds:g} s make {in_time:,} requests"
                raise UsageError(f"{made}; allowed: 1 to {MOST_REQUESTS:,}. Change the rate or the seconds")
        return min(count for count in (wanted, in_time) if count is not None)

    def _plan(self, conversations: int, seed: int, warmup: bool) -> list[Planned]:
        servers = [each for each in (self.target, self.baseline) if each]
        lengths = [each.max_model_len for each in servers if each.max_model_len is not None]
        least = self.composer.pieces.least
        longest = [each for each in (self.options.longest, max(WARMUP_LONGEST, 2 * least) if warmup else None) if each]
        bounds = Bounds(
            least=least,
            longest=min([*longest, *lengths] if warmup else longest, default=None),
            max_model_len=min(lengths, default=None),
            limits=self.limits()["target"],
            scale=self.options.scale,
            keys=len(self.client.keys),
        )
        planned = plan(self.workload, conversations, seed, bounds)
        return [replace(each, think=0.0) for each in planned] if warmup else planned

    def points(self, runs: Sequence[Run]) -> list[Point]:
        """Group runs by rate or concurrency."""
        grouped = groupby(runs, key=lambda run: (run.rate, run.concurrency))
        return [Point(_names(rate, concurrency)[1], rate, tuple(found)) for (rate, concurrency), found in grouped]

    def results(self, points: Sequence[Point]) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        from ropeswitch.loadtests.client.results import figures, ratios

        slos = (*(slo.scaled(self.options.scale) for slo in self.workload.objectives()), *self.options.slos)
        rows: list[dict[str, Any]] = []
        for point in points:
            sides: dict[Side, Any] = {"target": None, "baseline": None}
            for side, limits in self.limits().items():
                if found := point.side(side):
                    sides[side] = figures(found, self.bands(), slos, limits)
            both = sides["target"] and sides["baseline"]
            row: dict[str, Any] = {"label": point.label, "rate": point.rate} | dict(sides.items())
            rows.append(row | {"ratios": ratios(sides["target"], sides["baseline"]) if both else None})
        runs = [run for point in points for run in point.runs]
        checked = [
            {**found, "point": row["label"]}
            for row in rows
            for assertion in self.options.assertions
            for found in assertion.check(row["target"] or {"bands": {}}, row["baseline"])
        ]
        return {
            "format": 1,
            **self._upstream(points),
            "workload": self.workload.model_dump(mode="json", exclude_none=True),
            "settings": settings(self),
            "client": {"ropeswitch": version("ropeswitch"), "python": python_version(), "cpus": os.cpu_count()},
            "complete": len(runs) == len(self.heads()) and all(run.complete for run in runs),
            "stopped": [f"{run.name}: {run.stopped}" for run in runs if run.stopped],
            "slo": [slo.text for slo in slos],
            "assertions": checked,
            "points": rows,
            # A single point's figures are also at the top level, where tools for upstream's results expect them.
            **(rows[0]["target"] if len(rows) == 1 and rows[0]["target"] else {}),
        }

    def _upstream(self, points: Sequence[Point]) -> dict[str, Any]:
        """Return the keys of upstream's result files that describe the test."""
        loads, arrival = self._loads(), self.workload.arrival
        gamma = arrival.gamma
        return {
            "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
            "backend": "openai-chat" if self.composer.chat else "openai",
            "endpoint_type": "openai-chat" if self.composer.chat else "openai",
            "label": self.workload.name,
            "model_id": self.target.model,
            "tokenizer_id": self.target.model,
            "num_prompts": sum(len(run.exchanges) for point in points for run in point.side("target")),
            "request_rate": (loads[0][0] or "inf") if len(loads) == 1 else [rate for rate, _ in loads],
            "burstiness": gamma.burstiness if gamma else 1.0,
            "max_concurrency": loads[0][1] if len(loads) == 1 else [count for _, count in loads],
        }


def settings(test: LoadTest) -> dict[str, Any]:
    """Return the settings of a test for ``results.json``, besides the workload."""
    servers = [each for each in (test.target, test.baseline) if each]
    return {
        "text": test.client.text.model_dump(mode="json"),
        **{name: getattr(test.options, name) for name in ("seed", "scale", "longest", "repetitions")},
        "servers": [
            {name: getattr(each, name) for name in ("url", "model", "max_model_len", "limits")} for each in servers
        ],
        "url": test.target.url,
        "baseline": test.baseline and test.baseline.url,
    }


def make_keys(text: Text, seed: int) -> tuple[str, ...]:
    """Draw distinct pass keys without a leading 0."""
    low = 10 ** (text.digits - 1)
    drawn = np.random.default_rng([seed, text.digits]).choice(9 * low, size=KEYS, replace=False)
    return tuple(str(low + int(each)) for each in drawn)


def _names(rate: float | None, concurrency: int | None) -> tuple[str, str]:
    """Return a load's name in runs, and its label for people."""
    if rate is not None:
        return f"rate-{rate:.15g}", f"{rate:g} requests/s"
    return (f"clients-{concurrency}", f"{concurrency} at a time") if concurrency is not None else ("trace", "trace")
