"""Writes the tables of docs/models.md from the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.docs import made
from tests.matrix.recipe import KINDS, WITHOUT_ROTATION
from tests.matrix.results import DIFFERS, EXACT, NO_CHECKPOINT, NOT_COMPARED, NOT_ON_CPU, REFUSED, STOPS, VERDICTS, Line

PAGE = Path("docs/models.md")


def write(root: Path, results: Mapping[str, Line]) -> None:
    """Write the tables of :data:`PAGE` anew in the project's folder."""
    page = root / PAGE
    page.write_text(written(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def written(page: str, results: Mapping[str, Line]) -> str:
    """The page with its tables as the results have them.

    Raises:
        KeyError: for a table that there is not.
    """
    lines = [results[name] for name in sorted(results, key=str.lower)]
    tables: made.Tables = {
        "totals": lambda: _totals(lines),
        "exact": lambda: _exact(lines),
        "refused": lambda: _reasons(lines, REFUSED),
        "differs": lambda: _reasons(lines, DIFFERS),
        "not-compared": lambda: _reasons(lines, NOT_COMPARED),
        "not-on-cpu": lambda: _reasons(lines, NOT_ON_CPU),
        "no-checkpoint": lambda: _reasons(lines, NO_CHECKPOINT),
        "without": lambda: _without(),
    }
    return made.written(page, "docs-models", tables)


def _totals(lines: Sequence[Line]) -> str:
    rows = []
    for kind in (*KINDS, "all"):
        own = [line for line in lines if kind in (line["kind"], "all")]
        counts = [sum(line["verdict"] == verdict for line in own) for verdict in VERDICTS]
        stopped = sum(line["verdict"] == REFUSED and _stock(line) != "runs" for line in own)
        ran = sum(counts[: VERDICTS.index(NOT_COMPARED) + 1]) - stopped
        rows.append((kind, str(len(own)), *(_share(count, len(own)) for count in counts), _share(counts[0], ran)))
    return _table(
        ("architectures", "in all", *VERDICTS, "exact of those that stock vLLM runs here"),
        rows,
        "l" + "r" * (len(VERDICTS) + 2),
    )


def _exact(lines: Sequence[Line]) -> str:
    rows = [
        (
            f"`{line['architecture']}`",
            line["kind"],
            line["oracle"] + (f"; {line['replaced']} in torch" if line.get("replaced") else ""),
            f"{line['tokens']}",
            f"{line['error']:.1e}",
            f"{line['visible']:.2g}",
            f"{line['cached']}",
        )
        for line in lines
        if line["verdict"] == EXACT
    ]
    head = ("architecture", "kind", "compared with", "tokens", "largest error", "set's effect", "from the prefix cache")
    return _table(head, rows, "lllrrrr")


def _reasons(lines: Sequence[Line], verdict: str) -> str:
    """One row for each reason, with the architectures that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line["verdict"] == verdict:
            found.setdefault((line["reason"], _stock(line)), []).append(f"`{line['architecture']}`")
    rows = [(", ".join(names), _cell(reason), _cell(stock)) for (reason, stock), names in found.items()]
    rows.sort(key=lambda row: (-row[0].count(","), row[0].lower()))
    return _table(("architectures", "reason", "stock vLLM"), rows, "lll") if rows else "None.\n"


def _stock(line: Line) -> str:
    """What stock vLLM does."""
    if stock := line.get("stock"):
        return stock if stock.startswith(STOPS) else "runs"
    return "not tried" if line["verdict"] == NO_CHECKPOINT else "stops with this error"


def _without() -> str:
    rows = [(f"`{name}`", why) for name, why in sorted(WITHOUT_ROTATION.items(), key=lambda each: each[0].lower())]
    return _table(("architecture", "positions"), rows, "ll")


def _share(count: int, whole: int) -> str:
    return f"{count} ({count / whole:.0%})" if whole else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    line = [{"l": "---", "r": "--:"}[side] for side in sides]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, line, *rows))
