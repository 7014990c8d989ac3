"""``python -m tests.docs.prose``: finds turns of phrase in the pages that a native writer of this field would not use.

Each has a reason and a replacement. Code, inline code and links are left out.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.docs.pages import ROOT, pages

PHRASES: tuple[tuple[str, str], ...] = (
    (r"in hand", "not the field's word; write: in flight"),
    (r"tells?(?! (?:\w+ ){0,4}apart)|told", "programs do not talk; write: shows, reports, returns, lists"),
    (r"beside", "vague; write: next to, alongside, with, in addition to"),
    (r"so (?:many|often) (?!as)", "a clause without a noun; name the number"),
    (r"(?:of|by|from|than|with) what", "a clause without a noun; name the thing"),
    (r"what (?:became|becomes|comes) of", "write: the outcome, the status"),
    (r"that (?:is|are) there|is there(?= and)", "write: exists, is running, is installed"),
    (r"anew", "write: again, or use a verb with re-"),
    (r"compute[sd]? again", "write: recompute"),
    (r"in vain", "write what fails"),
    (r"g(?:o|oes|oing) on|went on", "write: continue, resume"),
    (r"(?:a|an|no) \w+(?: \w+)? of (?:its|their|our|your) own", "write: its own ..., separate"),
    (r"a stream that|streams that", "the field's word is request, where a request is meant"),
    (r"ways? round", "write: workaround"),
    (r"(?:wanted|asked) (?:were|was|is)", "write: target"),
    (r"deserves? a word", "write what differs"),
    (r"whatever (?:a|an|the|it|they|comes)", "write: regardless of, any"),
    (r"the way (?:from|to) .{1,40} to", "write: how to get from ... to"),
    (r"allowed are", "write: allowed: ..."),
    (r"leaves? the range", "write: exceeds the range"),
    (r"one by one", "write: one at a time"),
    (r"random places?", "write: random position"),
    (r"(?:stops?|refuses?|refused|rejected) (?:the )?start", "write: aborts startup, failed startup"),
)
# Lines end anywhere in a paragraph.
_SPACE = r"(?: |\n(?!\n))"
_FOUND = re.compile(
    "|".join(rf"(?P<p{n}>\b(?:{phrase.replace(' ', _SPACE)})\b)" for n, (phrase, _) in enumerate(PHRASES)), re.I
)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
# What was measured is quoted, errors of vLLM's and ours included.
_MEASURED = re.compile(r"<!-- [\w-]+: made by make docs-models -->.*?<!-- end -->", re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`|\]\([^)]*\)|<!--.*?-->|\"[^\"\n]+\"")


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and reason of everything that is found in a page."""
    prose = text
    for left_out in (_FENCE, _MEASURED):
        prose = left_out.sub(lambda block: "\n" * block[0].count("\n"), prose)
    prose = _CODE.sub(lambda code: "`" * len(code[0]), prose)
    for found in _FOUND.finditer(prose):
        assert found.lastgroup is not None
        yield prose.count("\n", 0, found.start()) + 1, found[0], PHRASES[int(found.lastgroup[1:])][1]


def check(files: Iterable[Path]) -> list[str]:
    """A line for each finding."""
    return [
        f"{file.relative_to(ROOT)}:{line}: {phrase!r}: {reason}"
        for file in files
        for line, phrase, reason in findings(file.read_text(encoding="utf-8"))
    ]


def main() -> int:
    found = check(pages())
    print(*found, sep="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
