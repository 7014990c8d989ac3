"""The scheduling benchmark's report, computed from its measurements alone."""

from collections.abc import Collection, Iterable

from ropeswitch.loadtests.scheduling import front
from ropeswitch.loadtests.scheduling.alone import alone
from ropeswitch.loadtests.scheduling.exactness import exactness
from ropeswitch.loadtests.scheduling.tables import Figure, Record, table

# Share of the cores used by other processes above which a run's times are unreliable.
OTHERS = 0.05


def report(records: Iterable[Record], settings: Collection[str]) -> str:
    """Return all tables as Markdown.

    Args:
        records: Measurements of one model and prompt length, as stored by ``bench.scheduling``; missing phases are skipped.
        settings: Names of the front's settings.

    Raises:
        ValueError: if there are no measurements.
    """
    phases: dict[str, list[Record]] = {}
    for record in records:
        phases.setdefault(record["phase"], []).append(record)
    if not phases:
        raise ValueError("records: at least one measurement is needed")
    parts: list[str] = []
    figures: list[Figure] = []
    everything = [record for group in phases.values() for record in group]
    for workload, runs in front_runs(everything, settings).items():
        if runs:
            parts.append(f"### The front, {workload}\n\n{front.report(runs)}")
    if any(phase.startswith("exactness ") for phase in phases):
        text, found = exactness(phases)
        parts.append(text)
        figures += found
    if "alone" in phases:
        text, found = alone(phases)
        parts.append(text)
        figures += found
    figures.append(_undisturbed(everything))
    rows = [[f.name, f.required, f.measured, "yes" if f.met else "**no**"] for f in figures]
    parts.append("### Required and measured\n\n" + table(["figure", "required", "measured", "met"], rows))
    return "\n\n".join(parts)


def front_runs(records: Iterable[Record], settings: Collection[str]) -> dict[str, list[front.Run]]:
    """Return the runs of the front's settings by workload, without rounds that not all settings have completed."""
    found: dict[str, list[front.Run]] = {}
    for record in records:
        phase, _, workload = record["phase"].partition(" ")
        if phase == "front":
            result = record["result"]
            run = front.Run(
                record["setting"],
                record["ours"],
                record["round"],
                tuple(result["firsts"]),
                result["gap"],
                result["long"],
            )
            found.setdefault(workload, []).append(run)
    return {workload: front.complete(runs, settings) for workload, runs in found.items()}


def _undisturbed(records: list[Record]) -> Figure:
    shares = [record["result"]["others"] for record in records]
    disturbed = sum(share > OTHERS for share in shares)
    name = f"runs with other processes on over {OTHERS:.0%} of the cores"
    return Figure(name, "none", f"{disturbed} of {len(shares)} (most: {max(shares):.0%})", disturbed == 0)
