"""``make docs-miniature``: writes the tables and figures of ``models/README.md``, on the bundled model, from its results.

Tables stand between a line ``<!-- NAME: made by make docs-miniature -->`` and a line ``<!-- end -->``.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from ropeswitch.factors import file
from ropeswitch.factors.evaluate.plots import draw
from ropeswitch.factors.evaluate.results import Row
from ropeswitch.models import BUNDLED_FACTORS
from ropeswitch.models.miniature.card import Results, comparison, table
from ropeswitch.models.miniature.shape import WINDOW

PAGE, RESULTS, FIGURES = Path("models/README.md"), Path("models/results"), Path("models/figures")
UNTUNED = "untuned.json"
KNOWN = ("pi", "ntk", "yarn")
SETS = ("switched", "short", "long", *KNOWN)
POINTS = (
    *((WINDOW << power, "switched", "long") for power in range(1, 7)),
    *((WINDOW << power, "long", "short") for power in range(7, 10)),
)
"""What the model shows, as (length, better set, other set): from two windows up to the length of fine-tuning the set for the
length beats the longest, and above it that one beats the short one."""
_MADE = re.compile(r"(<!-- ([\w-]+): made by make docs-miniature -->\n).*?(<!-- end -->)", re.DOTALL)


def tuned(folder: Path, above: int = 64 * WINDOW) -> Results:
    """What was measured of the finished model; beyond the last set but one ``switched`` is ``long``, which was measured."""
    results = Results.read(path for path in sorted(folder.glob("*.json")) if path.name != UNTUNED)
    same = {"set_name": "switched"}
    rows = [row | same for row in results.rows if row["set_name"] == "long" and row["length"] > above]
    cells = [cell | same for cell in results.cells if cell["set_name"] == "long" and cell["length"] > above]
    return Results((*results.rows, *rows), (*results.cells, *cells))


def written(page: str, folder: Path) -> str:
    """The page with its tables as the results have them.

    Raises:
        KeyError: for a table that there is not.
    """
    made = Tables(folder)
    tables: dict[str, Callable[[], str]] = {
        "ladder": made.ladder,
        "perplexity": made.perplexity,
        "passkey": made.passkey,
        "second": made.second,
        "recovery": made.recovery,
        "points": made.points,
        "earlier": made.earlier,
        "untuned": made.untuned,
        "untuned-points": made.untuned_points,
    }
    return _MADE.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n{found[3]}", page)


class Tables:
    """The tables of the page by name."""

    def __init__(self, folder: Path) -> None:
        self.tuned, self.before = tuned(folder), Results.read([folder / UNTUNED])

    def ladder(self) -> str:
        lines = ["| set | up to | start tokens | factors |", "| --- | --: | --: | --- |"]
        for each in file.load(BUNDLED_FACTORS).ladder.sets:
            factors = ", ".join(f"{factor:g}" for factor in each.factors)
            lines.append(f"| {each.name} | {each.max_length:,} | {each.start_tokens} | {factors} |")
        return "\n".join(lines) + "\n"

    def perplexity(self) -> str:
        return table(self.tuned, "perplexity", SETS)

    def passkey(self) -> str:
        return table(self.tuned, "passkey", SETS)

    def second(self) -> str:
        far = Results(tuple(row for row in self.tuned.rows if row["length"] > 64 * WINDOW), ())
        found = table(far, "perplexity", ("long", "yarn", "yarn-by-4", "yarn-by-2", "pi", "pi-by-4", "pi-by-2"))
        pairs = [
            (128 * WINDOW, "long", "yarn-by-2"),
            (256 * WINDOW, "long", "yarn-by-4"),
            (512 * WINDOW, "long", "yarn"),
        ]
        return found + "\n" + comparison(self.tuned, pairs)

    def recovery(self) -> str:
        near = Results(tuple(row for row in self.tuned.rows if row["length"] <= 2 * WINDOW), ())
        sets = ("switched", "unrecovered", "long")
        found = table(near, "perplexity", sets) + "\n" + table(near, "passkey", sets)
        pairs = [(length, "switched", other) for length in (WINDOW, 2 * WINDOW) for other in ("unrecovered", "long")]
        return found + "\n" + comparison(self.tuned, pairs)

    def points(self) -> str:
        lengths = self.tuned.lengths("perplexity")
        pairs = [(length, "switched", other) for other in ("long", "short", *KNOWN) for length in lengths]
        return comparison(self.tuned, [pair for pair in pairs if not self._same(*pair)])

    def _same(self, length: int, ours: str, theirs: str) -> bool:
        return self.tuned.losses(length, ours) == self.tuned.losses(length, theirs)

    def earlier(self) -> str:
        lengths = [length for length in self.tuned.lengths("perplexity") if length <= 32 * WINDOW]
        return comparison(self.tuned, [(length, "unrecovered", "x32") for length in lengths])

    def untuned(self) -> str:
        return table(self.before, "perplexity", _names(self.before))

    def untuned_points(self) -> str:
        return comparison(self.before, untuned_pairs(self.before))


def untuned_pairs(results: Results) -> list[tuple[int, str, str]]:
    """Each seed's search against what is known, and against random search from the same seed."""
    seeds = [name for name in _names(results) if re.fullmatch(r"evolution-\d", name)]
    (length,) = results.lengths("perplexity")
    pairs = [(length, name, other) for other in ("pi", "ntk", "yarn", "yarn-unscaled") for name in seeds]
    return pairs + [(length, name, name.replace("evolution", "random")) for name in seeds]


def main() -> int:
    """Write the page's tables and figures anew, in the project's folder."""
    text = PAGE.read_text(encoding="utf-8")
    new = written(text, RESULTS)
    PAGE.write_text(new, encoding="utf-8")
    names = {each.name for each in fields(Row)}
    rows = [Row(**{name: row[name] for name in names}) for row in tuned(RESULTS).rows if row["set_name"] in SETS]
    for path in draw(sorted(rows, key=lambda row: (SETS.index(row.set_name), row.length)), FIGURES):
        print(f"docs-miniature: {path}")
    print(f"docs-miniature: {PAGE} {'is up to date' if new == text else 'was written'}")
    return 0


def _names(results: Results) -> Sequence[str]:
    names = dict.fromkeys(row["set_name"] for row in results.rows)
    return [name for name in names if not name.endswith("-no-start")]


if __name__ == "__main__":
    sys.exit(main())
