"""The Markdown summary of a load test, for a pull request."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropeswitch.loadtests.report.reading import Figures, band_names, ratio, sides
from ropeswitch.loadtests.report.verdict import headline, stops, subject, tally, tone
from ropeswitch.loadtests.report.written import NONE, digits, milliseconds, share, times, whole

ICONS = {"good": "✅", "warn": "⚠️", "bad": "❌"}
# Heading, key and formatter.
COLUMNS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("TTFT p50", "median_ttft_ms", milliseconds), ("TTFT p99", "p99_ttft_ms", milliseconds),
    ("ITL p50", "median_itl_ms", milliseconds), ("ITL p99", "p99_itl_ms", milliseconds),
    ("e2e p50", "median_e2el_ms", milliseconds), ("output tokens/s", "output_throughput", digits),
)  # fmt: skip


def markdown(results: Mapping[str, Any]) -> str:
    """Return a headline, each point's table by length band and lateness, and the assertions and objectives."""
    settings = results["settings"]
    early = "" if results["complete"] else "stopped early; "
    words = headline(results)
    said = f"{early}{words[0].lower()}{words[1:]}"
    parts = [f"### {ICONS[tone(results)]} Load test of {text(results['model_id'])}: {said}"]
    if not results["complete"]:
        parts.append(f"**{text(stops(results))}**")
    against = f", against {text(settings['baseline'])}" if settings.get("baseline") else ""
    parts.append(
        f"Workload {text(results['workload']['name'])} at {text(settings['url'])}{against}; {text(results['date'])}, "
        f"seed {text(settings['seed'])}, {text(settings['repetitions'])} repetition(s)."
    )
    parts.append("\n".join(f"- {text(line)}" for line in tally(results)))
    for point in results["points"]:
        parts += [f"#### {text(point['label'])}", _bands(point), _sending(point)]
    if results["assertions"]:
        parts += ["#### Assertions", _assertions(results)]
    if results["slo"]:
        parts += ["#### Objectives", _objectives(results)]
    words = "Latencies are of completed requests, as in `vllm bench serve`; 1k is 1024 tokens."
    compared = any(len(sides(point)) == 2 for point in results["points"])
    parts.append(words + (" Ratios are the target's figure over the baseline's." if compared else ""))
    return "\n\n".join(part for part in parts if part) + "\n"


def text(value: object) -> str:
    """Escape a user's or a server's text as plain Markdown on one line, fit for a table's cell."""
    line = " ".join(str(value).split())
    # An underscore within a word needs no escape.
    return re.sub(r"[\\`*\[\]<>&|~#$]|(?<!\w)_|_(?!\w)", r"\\\g<0>", line)


def _bands(point: Figures) -> str:
    found = sides(point)
    both = len(found) == 2
    head = ["prompt tokens", "requests"]
    for title, _, _ in COLUMNS:
        head += [title, "ratio"] if both else [title]
    rows = []
    for name in (*band_names(point), None):
        cells = [each if name is None else each["bands"].get(name, {}) for _, each in found]
        row = [name or "**all**", whole(cells[0].get("completed", 0))]
        for _, key, written in COLUMNS:
            row += [written(cells[0].get(key)), times(ratio(key, *cells))] if both else [written(cells[0].get(key))]
        rows.append(row)
    alone = "The target did not run; these are the baseline's figures.\n\n" if point["target"] is None else ""
    return alone + _table(head, rows)


def _sending(point: Figures) -> str:
    return "\n".join(
        f"- {side}: sent late by {milliseconds(figures.get('median_lateness_ms'))} (median), "
        f"{milliseconds(figures.get('p99_lateness_ms'))} (p99), {milliseconds(figures.get('max_lateness_ms'))} (max); "
        f"{figures['crossings']:,} requests outgrew a factor set"
        for side, figures in sides(point)
    )


def _assertions(results: Mapping[str, Any]) -> str:
    rows = []
    for found in results["assertions"]:
        value = NONE if found["value"] is None else f"{found['value']:.4g}"
        rows.append(["✅" if found["ok"] else "❌", text(subject(results, found)), value])
    return _table(["", "assertion", "measured"], rows)


def _objectives(results: Mapping[str, Any]) -> str:
    rows = [
        [text(point["label"]), side, share(figures["good_share"]), f"{digits(figures['request_goodput'])} requests/s"]
        for point in results["points"]
        for side, figures in sides(point)
    ]
    listed = "; ".join(text(slo) for slo in results["slo"])
    return f"{listed}\n\n{_table(['', 'server', 'within all', 'goodput'], rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are already Markdown; the first column is left-aligned, the others right-aligned."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
