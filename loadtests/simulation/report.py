"""Results of a comparison: waiting times by prompt length, tables, and figures for JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from ropeswitch.loadtests.simulation.policies import Policy
from ropeswitch.loadtests.simulation.records import Outcome, Record
from ropeswitch.loadtests.simulation.workloads import SHORT as SHORT_PROMPT

# Classes of requests, each with its maximum prompt length; the last is unbounded.
CLASSES = (("<=2k", SHORT_PROMPT), ("2k-32k", 32768), ("32k-256k", 262144), (">256k", 1 << 62))
SHORT = CLASSES[0][0]


@dataclass(frozen=True)
class Waits:
    """Times to first token of one class of requests, seconds."""

    count: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Figures:
    """One policy's run of one workload.

    Attributes:
        policy: The policy.
        waits: Times to first token by class name; classes without requests are left out.
        worst_gap: Longest gap between two tokens of one request, in seconds.
        longest_done: Seconds from arrival to the last token of the longest prompt; the slowest if there are several.
        tokens_per_second: Prompt and answer tokens of all requests per second, until the last request is done.
        preemptions: Preemptions of all requests; ours counts moves to the next factor set too.
        steps: Steps of the engine.
        computed_again: Recomputed tokens, as a share of the tokens that had to be computed.
    """

    policy: Policy
    waits: dict[str, Waits]
    worst_gap: float
    longest_done: float
    tokens_per_second: float
    preemptions: int
    steps: int
    computed_again: float


def figures(policy: Policy, outcome: Outcome) -> Figures:
    """Return a run's figures; the run must have at least one request."""
    records = outcome.records
    longest = max(record.arrival.prompt for record in records)
    # A request's last token is sampled but never fed through the model.
    needed = sum(record.arrival.prompt + record.arrival.output - 1 for record in records)
    seconds = outcome.seconds - records[0].arrival.at
    return Figures(
        policy=policy,
        waits=_waits(records),
        worst_gap=max(record.worst_gap for record in records),
        longest_done=max(record.completion_seconds for record in records if record.arrival.prompt == longest),
        tokens_per_second=(needed + len(records)) / seconds,
        preemptions=sum(record.preemptions for record in records),
        steps=outcome.steps,
        computed_again=outcome.computed / needed - 1,
    )


def class_of(prompt: int) -> str:
    """Return the class name of a prompt of ``prompt`` tokens."""
    return next(name for name, end in CLASSES if prompt <= end)


def best(runs: Sequence[Figures]) -> Figures:
    """Return the run with the lowest 99th percentile of waiting time in the shortest class."""
    return min(runs, key=lambda run: (run.waits[SHORT].p99, run.waits[SHORT].p50))


def shown(runs: Sequence[Figures]) -> list[Figures]:
    """Return the runs to show in a table: of stock's tuned settings, only the best."""
    tuned = [run for run in runs if run.policy.kind == "tuned"]
    kept = best(tuned) if tuned else None
    return [run for run in runs if run.policy.kind != "tuned" or run is kept]


def table(runs: Sequence[Figures]) -> str:
    """Return one line per policy; times are in seconds."""
    present = [name for name, _ in CLASSES if any(name in run.waits for run in runs)]
    head = ["", *(f"{name} ({runs[0].waits[name].count})" for name in present)]
    rows = [[*head, "worst gap", "longest done", "tokens/s", "preempted", "steps"]]
    for run in shown(runs):
        waits = [" / ".join(seconds(x) for x in (w.p50, w.p99, w.max)) for w in (run.waits[name] for name in present)]
        last = [seconds(run.worst_gap), seconds(run.longest_done), f"{run.tokens_per_second:.0f}", str(run.preemptions)]
        rows.append([str(run.policy), *waits, *last, str(run.steps)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for label, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]))
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Format a time to about three significant digits, without exponents."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def as_json(run: Figures) -> dict[str, Any]:
    """Return a run's figures and policy as plain values, with the policy's label."""
    return asdict(run) | {"label": str(run.policy)}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted values: the smallest that ``share`` of them do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _waits(records: Sequence[Record]) -> dict[str, Waits]:
    by_class: dict[str, list[float]] = {}
    for record in records:
        by_class.setdefault(class_of(record.arrival.prompt), []).append(record.first_token_seconds)
    return {
        name: Waits(len(values), percentile(values, 0.5), percentile(values, 0.99), values[-1])
        for name, values in ((name, sorted(values)) for name, values in by_class.items())
    }
