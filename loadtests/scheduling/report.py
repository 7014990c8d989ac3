"""The scheduling benchmark's report, computed from its measurements alone."""

from collections.abc import Collection, Sequence

from ropeswitch.loadtests.scheduling import front
from ropeswitch.loadtests.scheduling.alone import alone
from ropeswitch.loadtests.scheduling.exactness import exactness
from ropeswitch.loadtests.scheduling.tables import Figure, Measurement, table

# Share of the cores used by other processes above which a run's times are unreliable.
OTHERS = 0.05


def report(measured: Sequence[Measurement], settings: Collection[str]) -> str:
    """Return all tables as Markdown.

    Args:
        measured: Measurements of one model and prompt length, as stored by ``bench.scheduling``; missing phases are skipped.
        settings: Names of the front's settings.

    Raises:
        ValueError: if there are no measurements.
    """
    if not measured:
        raise ValueError("measured: at least one measurement is needed")
    phases: dict[str, list[Measurement]] = {}
    for each in measured:
        phases.setdefault(each.phase, []).append(each)
    parts: list[str] = []
    figures: list[Figure] = []
    for workload, runs in front_runs(measured, settings).items():
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
    figures.append(_undisturbed(measured))
    rows = [[f.name, f.required, f.measured, "yes" if f.met else "**no**"] for f in figures]
    parts.append("### Required and measured\n\n" + table(["figure", "required", "measured", "met"], rows))
    return "\n\n".join(parts)


def front_runs(measured: Sequence[Measurement], settings: Collection[str]) -> dict[str, list[front.Run]]:
    """Return the runs of the front's settings by workload, without rounds that not all settings have completed."""
    found: dict[str, list[front.Run]] = {}
    for each in measured:
        phase, _, workload = each.phase.partition(" ")
        if phase == "front":
            firsts, gap, long = (each.result[name] for name in ("firsts", "gap", "long"))
            run = front.Run(each.setting, each.ours, each.round, tuple(firsts), gap, long)
            found.setdefault(workload, []).append(run)
    return {workload: front.complete(runs, settings) for workload, runs in found.items()}


def _undisturbed(measured: Sequence[Measurement]) -> Figure:
    shares = [each.result["others"] for each in measured]
    disturbed = sum(share > OTHERS for share in shares)
    name = f"runs with other processes on over {OTHERS:.0%} of the cores"
    return Figure(name, "none", f"{disturbed} of {len(shares)} (most: {max(shares):.0%})", disturbed == 0)
