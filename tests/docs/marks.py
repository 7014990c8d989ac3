"""Which commands of the pages run: all but those that are marked, or that another test runs (commands.yaml)."""

import re
from pathlib import Path

import yaml

from tests.docs.pages import ROOT, blocks, statements

COMMANDS = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))
_WHAT = "|".join(COMMANDS["needs"])
_TIME = r"[1-9]\d* (?:minutes|hours)"
MARK = re.compile(rf"# (?:needs (?:{_WHAT})(?:, (?:{_WHAT}))*(?: and (?:{_WHAT}))?|takes {_TIME})(?:: [^\n]+)?\n")
LIKE_A_MARK = re.compile(r"# (?:needs?|takes?)\b[^\n]*\n")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def mark(statement: str) -> str | None:
    """The mark of a command, or of what looks like one; None if there is none."""
    found = LIKE_A_MARK.search(statement)
    return found[0] if found else None


def to_run(page: Path) -> list[str]:
    """The page's blocks without what is marked or run by other tests, in their order; none that is empty."""
    found = []
    for block in blocks(page, "bash"):
        every = statements(block)
        if every[0].startswith("#") and mark(every[0]):
            continue
        text = "".join(
            each for each in every if not mark(each) and not any(part in each for part in COMMANDS["executed_by"])
        )
        for old, new in COMMANDS["substitutions"].get(name(page), {}).items():
            text = text.replace(old, new)
        if text:
            found.append(text)
    return found
