"""Writes the tables of docs/models.md from the results."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from tests.docs import made
from tests.matrix.recipe import KINDS, WITHOUT_ROTATION
from tests.matrix.results import DIFFERS, EXACT, NO_CHECKPOINT, NOT_COMPARED, NOT_ON_CPU, REFUSED, STOPS, VERDICTS, Line

PAGE = Path("docs/models.md")
# The page explains these words.
REFERENCES = {
    "transformers": "transformers",
    "stock vLLM with static YaRN": "stock",
    "stock vLLM with forced frequencies": "forced",
}
# The field, and its number, that a reason begins with.
_FIELD = re.compile(r"^\w+: (?:\d+: )?")


def tables(results: Mapping[str, Mapping[str, Line]]) -> made.Tables:
    """The page's tables, by their names, as the results of each vLLM release have them."""
    names = sorted({name for found in results.values() for name in found}, key=lambda name: (name.lower(), name))
    lines = [{"release": each, **found[name]} for name in names for each, found in results.items() if name in found]
    return {
        "totals": lambda: _totals(lines),
        "exact": lambda: _exact(lines),
        "refused": lambda: _reasons(lines, REFUSED),
        "differs": lambda: _reasons(lines, DIFFERS),
        "not-compared": lambda: _reasons(lines, NOT_COMPARED),
        "not-on-cpu": lambda: _reasons(lines, NOT_ON_CPU),
        "no-checkpoint": lambda: _reasons(lines, NO_CHECKPOINT),
        "without": lambda: _without(),
    }


def _totals(lines: Sequence[Line]) -> str:
    """Verdicts that no architecture has are left out."""
    rows = []
    found = [verdict for verdict in VERDICTS if any(line["verdict"] == verdict for line in lines)]
    for kind, release in product((*KINDS, "all"), _releases(lines)):
        own = [line for line in lines if line["release"] == release and kind in (line["kind"], "all")]
        counts = {verdict: sum(line["verdict"] == verdict for line in own) for verdict in VERDICTS}
        stopped = sum(line["verdict"] == REFUSED and _stock(line) != "runs" for line in own)
        ran = sum(counts[each] for each in (EXACT, REFUSED, DIFFERS, NOT_COMPARED)) - stopped
        shares = (_share(counts[verdict], len(own)) for verdict in found)
        rows.append((kind, release, str(len(own)), *shares, _share(counts[EXACT], ran)))
    head = ("architectures", "vLLM", "in all", *found, "exact of those that stock vLLM runs here")
    return _table(head, rows, "ll" + "r" * (len(head) - 2))


def _exact(lines: Sequence[Line]) -> str:
    """A table for each kind, with a row for all that were compared alike."""
    tables = []
    for kind in KINDS:
        compared: dict[tuple[str, str], list[Line]] = {}
        for line in lines:
            if line["verdict"] == EXACT and line["kind"] == kind:
                compared.setdefault((line["architecture"], _reference(line)), []).append(line)
        found: dict[tuple[str, str], dict[str, float]] = {}
        for (name, reference), own in compared.items():
            known = ", ".join(line["release"] for line in own)
            found.setdefault((reference, known), {})[f"`{name}`"] = max(line["error"] for line in own)
        rows = [(", ".join(own), *alike, f"{max(own.values()):.1e}") for alike, own in found.items()]
        rows.sort(key=lambda row: (-row[0].count(","), row[0].lower()))
        head = ("architectures", "reference", "vLLM", "largest error")
        tables.append(f"### {kind[0].upper()}{kind[1:]}\n\n{_table(head, rows, 'lllr')}")
    return "\n".join(tables)


def _releases(lines: Sequence[Line]) -> list[str]:
    return sorted({line["release"] for line in lines})


def _reference(line: Line) -> str:
    notes = [REFERENCES[line["oracle"]]]
    if line.get("replaced"):
        notes.append(f"{line['replaced']} in torch")
    if not line["cached"]:
        notes.append("uncached")
    return "; ".join(notes)


def _reasons(lines: Sequence[Line], verdict: str) -> str:
    """One row for each reason, with the architectures that have it; what several fields have in common is one reason."""
    releases: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        if line["verdict"] == verdict:
            releases.setdefault((line["architecture"], line["reason"], _stock(line)), []).append(line["release"])
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for (name, reason, stock), known in releases.items():
        found.setdefault((_FIELD.sub("", reason), stock, ", ".join(known)), {})[f"`{name}`"] = reason
    rows = []
    for (common, stock, known), own in found.items():
        [reason, *others] = set(own.values())
        rows.append((", ".join(own), _cell(common if others else reason), stock, known))
    rows.sort(key=lambda row: (-row[0].count(","), row[0].lower()))
    return _table(("architectures", "reason", "stock vLLM", "vLLM"), rows, "llll") if rows else "None.\n"


def _stock(line: Line) -> str:
    """What stock vLLM does."""
    if stock := line.get("stock"):
        return "stops" if stock.startswith(STOPS) else "runs"
    return "not tried" if line["verdict"] == NO_CHECKPOINT else "stops"


def _without() -> str:
    found: dict[str, list[str]] = {}
    for name, why in sorted(WITHOUT_ROTATION.items(), key=lambda each: each[0].lower()):
        found.setdefault(why, []).append(f"`{name}`")
    return _table(("positions", "architectures"), [(why, ", ".join(names)) for why, names in found.items()], "ll")


def _share(count: int, whole: int) -> str:
    return f"{count} ({count / whole:.0%})" if count else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    line = [{"l": "---", "r": "--:"}[side] for side in sides]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, line, *rows))
