"""The results of a load test as plain text, for a terminal and the log of a Job."""

from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.text_table import table
from ropeswitch.loadtests.report.reading import Figures, band_names, ratio, sides
from ropeswitch.loadtests.report.verdict import headline, stops, subject, tally
from ropeswitch.loadtests.report.written import NONE, digits, milliseconds, share, times, whole

COLUMNS = (  # Heading, key and formatter.
    ("TTFT p50", "median_ttft_ms", milliseconds), ("TTFT p99", "p99_ttft_ms", milliseconds),
    ("ITL p50", "median_itl_ms", milliseconds), ("ITL p99", "p99_itl_ms", milliseconds),
    ("e2e p50", "median_e2el_ms", milliseconds), ("output tokens/s", "output_throughput", digits),
)  # fmt: skip


def text(results: Mapping[str, Any]) -> str:
    """Return the headline, each point's table by length band and how late requests were sent, and the assertions."""
    head = [f"Load test of {' '.join(results['model_id'].split())}: {headline(results)}", *tally(results)]
    parts = [head if results["complete"] else [*head, stops(results)]]
    parts += [[point["label"], _bands(point), *_sides(point)] for point in results["points"]]
    for found in results["assertions"]:
        value = NONE if found["value"] is None else f"{found['value']:.4g}"
        parts.append([f"{'holds' if found['ok'] else 'FAILED'}: {subject(results, found)}: measured {value}"])
    return "\n\n".join("\n".join(lines) for lines in parts)


def _bands(point: Figures) -> str:
    rows = [("prompt tokens", "server", "requests", *(title for title, _, _ in COLUMNS))]
    for name in (*band_names(point), None):
        found = [(side, each if name is None else each["bands"].get(name, {})) for side, each in sides(point)]
        for place, (side, each) in enumerate(found):
            cells = (write(each.get(key)) for _, key, write in COLUMNS)
            rows.append(("" if place else name or "all", side, whole(each.get("completed")), *cells))
        if len(found) == 2:
            rows.append(("", "ratio", "", *(times(ratio(key, found[0][1], found[1][1])) for _, key, _ in COLUMNS)))
    return table(rows)


def _sides(point: Figures) -> list[str]:
    late = {name: f"{name}_lateness_ms" for name in ("median", "p99", "max")}
    return [
        f"{side}: sent late by {', '.join(f'{milliseconds(each.get(key))} ({name})' for name, key in late.items())}; "
        f"{each['crossings']:,} requests outgrew a factor set"
        + (f"; {share(good)} within all objectives" if (good := each.get("good_share")) is not None else "")
        for side, each in sides(point)
    ]
