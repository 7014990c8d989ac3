"""The scheduling benchmark's table of the cost of exactness: requests that cross the limit together."""

import statistics

from ropeswitch.loadtests.scheduling.arrivals import BEHIND, CROSSINGS
from ropeswitch.loadtests.scheduling.settings import WINDOW
from ropeswitch.loadtests.scheduling.tables import Figure, Measurement, seconds, table

# Maximum ratio of our seconds to stock's with the same tokens recomputed.
MOST = 1.05
# Tokens of the crossing requests, prompts and answers.
SERVED = CROSSINGS * (WINDOW + BEHIND)
SIDES = STOCK, ARITHMETIC, LENGTH, RESERVE, LENGTH_IN_ORDER, RESERVE_IN_ORDER = (
    "stock, long set for all",
    "stock, and the recomputation by itself",
    "ours, length",
    "ours, reserve",
    "ours, length, vLLM's order",
    "ours, reserve, vLLM's order",
)


def exactness(phases: dict[str, list[Measurement]]) -> tuple[str, list[Figure]]:
    """Return the table, and our seconds over stock's with the same tokens recomputed; medians of the rounds.

    Args:
        phases: Measurements by phase; only phases ``exactness NAME`` are used.
    """
    results = {name: {each.round: each.result for each in phases.get(f"exactness {name}", [])} for name in SIDES}
    rounds = sorted(set.intersection(*(set(found) for found in results.values())))
    if not rounds:
        return "### The cost of exactness\n\nNo round has all sides.", []
    rows = []
    for name, found in results.items():
        runs = [found[turn] for turn in rounds]
        columns = [[run["seconds"] for run in runs], [SERVED / run["seconds"] for run in runs]]
        columns += [[run["long"] for run in runs], [run["gap"] for run in runs]]
        whole, rate, long, gap = map(statistics.median, columns)
        recomputed = statistics.median(run["recomputed"] for run in runs)
        rows.append([name, f"{recomputed:g}", seconds(whole), f"{rate:.0f}", seconds(long), seconds(gap)])
    header = ["side", "tokens recomputed", "all answers s", "tokens/s", "mean answer s", "worst gap s"]
    figures = []
    for name, against in (
        (LENGTH_IN_ORDER, ARITHMETIC),
        (RESERVE_IN_ORDER, STOCK),
        (LENGTH, ARITHMETIC),
        (RESERVE, STOCK),
    ):
        ratios = [results[name][turn]["seconds"] / results[against][turn]["seconds"] for turn in rounds]
        median = statistics.median(ratios)
        measured = f"{median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        figures.append(Figure(f"all answers, {name} / {against}", f"at most {MOST}", measured, median <= MOST))
    text = f"### The cost of exactness, {len(rounds)} rounds\n\n" + table(header, rows)
    return text, figures
