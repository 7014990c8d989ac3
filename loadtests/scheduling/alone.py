"""The scheduling benchmark's table of the long prompt alone."""

import statistics

from ropeswitch.loadtests.scheduling.settings import OURS, STOCK
from ropeswitch.loadtests.scheduling.tables import Figure, Measurement, seconds, table

# Maximum ratio of our seconds to stock's.
MOST = 1.02


def alone(phases: dict[str, list[Measurement]]) -> tuple[str, list[Figure]]:
    """Return the table, and our seconds over stock's, the median of the rounds.

    Args:
        phases: Measurements by phase; only the phase ``alone`` is used.
    """
    sides: dict[str, dict[int, float]] = {STOCK.name: {}, OURS.name: {}}
    for each in phases["alone"]:
        sides[each.setting][each.round] = each.result["long"]
    stock, ours = sides[STOCK.name], sides[OURS.name]
    both = sorted(stock.keys() & ours.keys())
    if not both:
        return "### The long prompt alone\n\nNo round has both sides.", []
    ratios = [ours[i] / stock[i] for i in both]
    median = statistics.median(ratios)
    rows = [[str(i + 1), seconds(stock[i]), seconds(ours[i]), f"{ours[i] / stock[i]:.3f}"] for i in both]
    text = "### The long prompt alone\n\n" + table(["round", "stock s", "ours s", "ours / stock"], rows)
    figure = Figure(
        f"the long prompt alone, ours / stock, median of {len(both)}",
        f"at most {MOST}",
        f"{median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        median <= MOST,
    )
    return text, [figure]
