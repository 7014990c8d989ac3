"""Tables of the docs that are written from the code.

One stands between a line ``<!-- NAME: made by make TARGET -->`` and a line ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Tables = Mapping[str, Callable[[], str]]


def written(page: str, target: str, tables: Tables) -> str:
    """A page with its tables as ``tables`` makes them.

    Raises:
        KeyError: for a table of the page that ``tables`` lacks.
    """
    made = re.compile(rf"(<!-- ([\w-]+): made by make {target} -->\n).*?(<!-- end -->)", re.DOTALL)
    return made.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n{found[3]}", page)


def write(path: Path, target: str, tables: Tables) -> None:
    """Write the tables of a page anew, and print whether it changed."""
    text = path.read_text(encoding="utf-8")
    new = written(text, target, tables)
    path.write_text(new, encoding="utf-8")
    print(f"{target}: {path} {'is up to date' if new == text else 'was written'}")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
