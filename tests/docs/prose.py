"""``python -m tests.docs.prose``: finds the phrases of prose.yaml in the pages. Code, inline code and links are left out."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.docs.pages import ROOT, pages

PHRASES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("prose.yaml").read_text(encoding="utf-8"))
# Lines end anywhere in a paragraph.
_SPACE = r"(?: |\n(?!\n))"
_FOUND = re.compile("|".join(rf"(\b(?:{phrase.replace(' ', _SPACE)})\b)" for phrase in PHRASES), re.I)
# What was measured is quoted, errors of vLLM's and ours included.
_BLOCKS = re.compile(
    r"^ *```.*?^ *```$|<!-- [\w-]+: made by make docs-models -->.*?<!-- end -->", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"`[^`\n]+`|\]\([^)]*\)|<!--.*?-->|\"[^\"\n]+\"")


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and reason of everything that is found in a page."""
    prose = _BLOCKS.sub(lambda block: "\n" * block[0].count("\n"), text)
    prose = _CODE.sub(lambda code: "`" * len(code[0]), prose)
    for found in _FOUND.finditer(prose):
        assert found.lastindex is not None
        yield prose.count("\n", 0, found.start()) + 1, found[0], list(PHRASES.values())[found.lastindex - 1]


if __name__ == "__main__":
    lines = [
        f"{page.relative_to(ROOT)}:{line}: {phrase!r}: {reason}"
        for page in pages()
        for line, phrase, reason in findings(page.read_text(encoding="utf-8"))
    ]
    print(*lines, sep="\n" if lines else "")
    sys.exit(bool(lines))
