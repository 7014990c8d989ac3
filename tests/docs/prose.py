"""``python -m tests.docs.prose``: finds the phrases of prose.yaml in the pages. Code, inline code and links are left out."""

import re
import sys
from pathlib import Path

import yaml

from tests.docs.pages import ROOT, pages

PHRASES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("prose.yaml").read_text(encoding="utf-8"))
# Lines end anywhere in a paragraph.
_SPACE = r"(?: |\n(?!\n))"
# What was measured is quoted, errors of vLLM's and ours included.
_CODE = re.compile(
    r"^ *```.*?^ *```$|<!-- [\w-]+: made by make docs-models -->.*?<!-- end -->|<!--.*?-->"
    r"|`[^`\n]+`|\]\([^)]*\)|\"[^\"\n]+\"",
    re.MULTILINE | re.DOTALL,
)


def main() -> int:
    """Print every finding; return the exit code."""
    count = 0
    for page in pages():
        prose = _CODE.sub(lambda code: "`" + "\n" * code[0].count("\n"), page.read_text(encoding="utf-8"))
        for phrase, reason in PHRASES.items():
            for found in re.finditer(rf"\b(?:{phrase.replace(' ', _SPACE)})\b", prose, re.IGNORECASE):
                line = prose.count("\n", 0, found.start()) + 1
                print(f"{page.relative_to(ROOT)}:{line}: {found[0]!r}: {reason}")
                count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
