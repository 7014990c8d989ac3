"""A complete load test: builds the prompts, alternates runs between the servers and computes the results."""

import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.endpoint import Endpoint
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.client.assertions import Assertion, Slo
from ropeswitch.loadtests.client.bands import DEFAULT, Band, bands, bands_of_sets
from ropeswitch.loadtests.client.execute import Prompts, execute
from ropeswitch.loadtests.client.pack import build
from ropeswitch.loadtests.client.pieces import KEYS
from ropeswitch.loadtests.client.plan import Bounds, Planned, plan, read_trace
from ropeswitch.loadtests.client.prompts import Composer
from ropeswitch.loadtests.client.records import Point, Run, Side
from ropeswitch.loadtests.client.sender import Client
from ropeswitch.loadtests.client.store import Store
from ropeswitch.loadtests.client.texts import Text
from ropeswitch.loadtests.client.turns import Joints
from ropeswitch.loadtests.client.workload import Workload

# Tokens of the longest warm-up prompt: enough to warm the server up without taking as long as the run.
WARMUP_LONGEST = 2048
WARMUP_SEED = 1_000_000
# Raised when the same seed gives other prompts, which must not be compared with those of an earlier run.
PROMPTS_VERSION = 2
MOST_REQUESTS = 10_000_000


@dataclass(frozen=True)
class Options:
    """Settings in addition to the workload: the flags of ``ropeswitch loadtest``."""

    rates: tuple[float, ...]
    concurrencies: tuple[int, ...]
    repetitions: int
    seed: int
    scale: float
    longest: int | None
    bands: tuple[Band, ...] | None
    slos: tuple[Slo, ...]
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True)
class LoadTest:
    """A load test that is ready to run.

    Attributes:
        client: How to send requests.
        target: The server under test.
        baseline: The server to compare with, or None.
        tokenizer: Tokenizer of the served model.
        composer: Assembles prompts.
        options: See :class:`Options`.
    """

    client: Client
    target: Endpoint
    baseline: Endpoint | None
    tokenizer: Tokenizer
    composer: Composer
    options: Options

    @property
    def workload(self) -> Workload:
        return self.client.workload

    @cached_property
    def trace_digest(self) -> str:
        """SHA-256 of the trace's content when the test began, in hexadecimal."""
        assert self.workload.arrival.trace is not None, "asked of a test with a trace"
        return sha256(repr(read_trace(Path(self.workload.arrival.trace.file))).encode()).hexdigest()

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
                    name = f"{_point_name(rate, concurrency)}-{side}-{repetition + 1}"
                    found.append(Run(name, side, rate, concurrency, repetition, 0.0, 0.0, False))
        return found

    def _loads(self) -> list[tuple[float | None, int | None]]:
        arrival = self.workload.arrival
        if arrival.closed:
            return [(None, each) for each in self.options.concurrencies or (arrival.closed.concurrency,)]
        if arrival.rated:
            return [(each, None) for each in self.options.rates or (arrival.rated.rate,)]
        return [(None, None)]

    def prepare(self, store: Store) -> dict[str, Prompts]:
        """Build the prompts of the runs that are not complete yet, so that errors in them show before the first run.

        Returns:
            The prompts of each run, by its name. Both servers' runs share them.
        """
        by_seed: dict[int, Prompts] = {}
        found: dict[str, Prompts] = {}
        for head in self.heads():
            if not store.is_complete(head.name):
                seed = self._seed(head)
                if seed not in by_seed:
                    by_seed[seed] = self._prompts(head, seed, False, store.folder)
                found[head.name] = by_seed[seed]
        return found

    def run(self, store: Store, prompts: dict[str, Prompts]) -> list[Run]:
        """Execute the runs that are not complete yet, up to the first that is cut short.

        Args:
            store: Where to write.
            prompts: From :meth:`prepare`; those of finished runs are removed, to free the disk.

        Returns:
            All runs so far.
        """
        runs: list[Run] = []
        for head in self.heads():
            done = store.run(head.name)
            if done is None or not done.complete:
                endpoint = self.target if head.side == "target" else self.baseline
                assert endpoint is not None, "only a test with a baseline has baseline runs"
                seed = self._seed(head)
                warmup = self._prompts(head, seed + WARMUP_SEED, True, store.folder) if self.workload.warmup else None
                done = execute(self.client, endpoint, head, prompts.pop(head.name), warmup, seed, store)
            else:
                print(f"loadtest: {head.name} is already complete", file=sys.stderr, flush=True)
            runs.append(done)
            if not done.complete:
                break
        return runs

    def _seed(self, run: Run) -> int:
        """Random seed of a run's prompts.

        Both servers get the same prompts. Each rate and repetition has its own, so that none hits the prefix cache. The
        seed does not depend on the other rates of the sweep, which may differ when a test resumes.
        """
        load = _point_name(run.rate, run.concurrency).encode()
        # SeedSequence makes the streams of neighbouring seeds independent.
        return int(np.random.SeedSequence([self.options.seed, run.repetition, *load]).generate_state(1)[0])

    def _prompts(self, run: Run, seed: int, warmup: bool, folder: Path) -> Prompts:
        count = self.workload.warmup if warmup else self._conversations(run)
        planned = self._plan(count, seed, warmup)
        joints = Joints(self.client.text, self.tokenizer, self.composer)
        with tqdm(
            total=len(planned),
            desc=f"building prompts ({run.name})",
            # None shows it on a terminal only.
            disable=None if self.client.shown and not warmup else True,
            delay=1,
            leave=False,
        ) as bar:
            return Prompts(planned, build(folder, planned, self.composer, joints, seed, bar.update))

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
                raise UsageError(
                    f"{run.rate:g} requests per second for {seconds:g} s make {in_time:,} requests; allowed: 1 to "
                    f"{MOST_REQUESTS:,}. Change the rate or the seconds"
                )
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
        return [Point(_label(rate, concurrency), rate, tuple(found)) for (rate, concurrency), found in grouped]

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
            "settings": settings(self)
            | {
                "url": self.target.url,
                "baseline": self.baseline and self.baseline.url,
                "repetitions": self.options.repetitions,
            },
            "client": {
                "ropeswitch": version("ropeswitch"),
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
            },
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
    """Return the settings that a test must share to resume in a folder; rates and repetitions may be added."""
    return {
        "workload": test.workload.model_dump(mode="json", exclude_none=True),
        **({"trace": test.trace_digest} if test.workload.arrival.trace else {}),
        "text": test.client.text.model_dump(mode="json"),
        "seed": test.options.seed,
        "prompts_version": PROMPTS_VERSION,
        "scale": test.options.scale,
        "longest": test.options.longest,
        "servers": [_server(each) for each in (test.target, test.baseline) if each],
    }


def _server(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "url": endpoint.url,
        "model": endpoint.model,
        "max_model_len": endpoint.max_model_len,
        "limits": list(endpoint.limits),
    }


def make_keys(text: Text, seed: int) -> tuple[str, ...]:
    """Draw distinct pass keys without a leading 0."""
    low = 10 ** (text.digits - 1)
    drawn = np.random.default_rng([seed, text.digits]).choice(9 * low, size=KEYS, replace=False)
    return tuple(str(low + int(each)) for each in drawn)


def _point_name(rate: float | None, concurrency: int | None) -> str:
    if rate is not None:
        return f"rate-{rate:.15g}"
    return f"clients-{concurrency}" if concurrency is not None else "trace"


def _label(rate: float | None, concurrency: int | None) -> str:
    if rate is not None:
        return f"{rate:g} requests/s"
    return f"{concurrency} at a time" if concurrency is not None else "trace"
