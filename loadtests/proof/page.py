"""Writes the tables of docs/proof.md and README.md, and their plot, from the results.

A table stands between a line ``<!-- NAME: made by make docs-proof -->`` and a line ``<!-- end -->``.
"""

import re
from collections.abc import Callable
from pathlib import Path

from ropeswitch.factors.files import save_bytes, save_text
from ropeswitch.loadtests.proof import tables
from ropeswitch.loadtests.proof.plot import draw
from ropeswitch.loadtests.proof.tables import Results
from ropeswitch.loadtests.proof.texts import PACKAGES

PAGES = (Path("docs/proof.md"), Path("README.md"))
PLOT = Path("docs/proof.svg")
RESULTS = Path("models/results/proof")
_MADE = re.compile(r"(<!-- ([\w-]+): made by make docs-proof -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, results: Results) -> str:
    """Return the page with its tables filled from the results.

    Raises:
        KeyError: for an unknown table.
    """
    made: dict[str, Callable[[Results], str]] = {
        "summary": tables.summary,
        "findings": tables.findings,
        "perplexity": tables.perplexity,
        "passkey": tables.passkey,
        "chat": tables.chat,
        "texts": lambda _: texts(),
    }
    return _MADE.sub(lambda found: f"{found[1]}\n{made[found[2]](results)}\n{found[3]}", page)


def texts() -> str:
    """Return the table of the packages that the texts come from."""
    lines = ["| package | archive | sha256 | texts |", "| --- | --- | --- | --- |"]
    lines += [f"| {each.requirement} | {each.archive} | `{each.sha256}` | {each.texts} |" for each in PACKAGES]
    return "\n".join(lines) + "\n"


def write(root: Path) -> None:
    """Write both pages' tables and the plot below ``root``."""
    results = Results.read(root / RESULTS)
    for page in PAGES:
        save_text(root / page, written((root / page).read_text(encoding="utf-8"), results), overwrite=True)
    save_bytes(root / PLOT, draw(results), overwrite=True)
