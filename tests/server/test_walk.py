"""The walk of a request in docs/architecture.md is short and names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files of the steps, and with their helpers; both numbers only shrink.
MOST_FILES, MOST_WITH_HELPERS = 25, 59
PAGE = ROOT / "docs" / "architecture.md"
# A file of ours by its path from the root.
NAME = re.compile(r"`((?:server|model_patches|kernels|factors)/[\w/]+\.py)`")


def walk() -> tuple[set[str], set[str]]:
    """The files that the page names in the steps of a request, and those that it says help on the way."""
    section = PAGE.read_text(encoding="utf-8").split("## One request, step by step")[1].split("\n## ")[0]
    steps, helpers = section.split("These help on the way:")
    return set(NAME.findall(steps)), set(NAME.findall(helpers))


def test_the_walk_is_short() -> None:
    steps, helpers = walk()
    assert 0 < len(steps) <= MOST_FILES
    assert not steps & helpers and len(steps | helpers) <= MOST_WITH_HELPERS
    assert all((ROOT / name).is_file() for name in steps | helpers)
