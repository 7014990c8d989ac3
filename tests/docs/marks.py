"""Which commands of the pages run: all but those that are marked, or that another test runs.

A mark is a comment, ``# needs WHAT`` or ``# takes TIME``, with an explanation after a colon where it helps. As the
first line of a block it covers the block, at the end of a command only that command.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.docs.pages import ROOT, blocks, statements

KNOWN = (
    "a GPU",
    "8 A100-80GB",
    "the network",
    "the Hugging Face Hub",
    "a Kubernetes cluster",
    "a cloud account",
    "Docker",
    "Helm",
    "Podman",
    "SkyPilot",
    "skopeo",
    "root",
)
"""What a command may need."""
_WHAT = "|".join(KNOWN)
_TIME = r"[1-9]\d* (?:minutes|hours)"
MARK = re.compile(rf"# (?:needs (?:{_WHAT})(?:, (?:{_WHAT}))*(?: and (?:{_WHAT}))?|takes {_TIME})(?:: [^\n]+)?\n")
LIKE_A_MARK = re.compile(r"# (?:needs?|takes?)\b[^\n]*\n")

EXECUTED_BY = {
    "make demo": "tests/models/demo/test_served.py::test_it_answers_the_question_of_the_page",
    '"model": "smollm2"': "tests/models/demo/test_served.py::test_it_answers_the_question_of_the_page",
    "serve MODEL --factors llama2.json\n": "tests/server/test_accepted_flags.py::test_a_ladder_comes_from_a_file",
    "serve --ssl-certfile tls.crt": "tests/server/test_front.py::test_keys_from_the_flag_and_the_file",
    """serve models/longrope-mini --kv-cache-memory-bytes 1G --enforce-eager \\
  --additional-config""": "tests/server/test_vllm_serve.py::test_each_prompt_is_rotated_with_its_own_set",
    "ROPESWITCH_FACTORS=": "tests/server/test_vllm_serve.py::test_each_prompt_is_rotated_with_its_own_set",
}
"""A part of a command, and the test that runs it, or its program with these flags."""

SMALL = "--documents 1 --population 3 --mutations 1 --crossovers 1 --iterations 1"
SUBSTITUTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        # The log of a running server in place of one more server.
        "docs/configuration.md": {"ropeswitch serve |": 'cat "$SERVER_OUTPUT" |'},
        "docs/factor-evaluation.md": {
            "--lengths 4k,8k,32k,128k": "--lengths 256,600 --documents 1 --windows 2 --tries 1",
            "--lengths 8k,128k": "--lengths 256,600 --tries 1",
        },
        "docs/factor-search.md": {
            "--length 32k": f"--length 512 {SMALL}",
            "--lengths 128k,256k --final 2048k --recover 4k,8k": (
                f"--lengths 320,384 --final 512 --recover 64,128 {SMALL}"
            ),
        },
        "docs/loadtests.md": {"--seconds 60": "--seconds 3"},
        "docs/start.md": {
            "search MODEL --length 128k": f"search MODEL --length 512 {SMALL}",
            "--lengths 8k,128k": "--lengths 256,500 --documents 1 --windows 2 --tries 1",
        },
    }
)
"""What is replaced in a page's commands to keep them short."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def mark(statement: str) -> str | None:
    """The mark of a command, or of what looks like one; None where there is none."""
    found = LIKE_A_MARK.search(statement)
    return found[0] if found else None


def executed_by(statement: str) -> str | None:
    """The other test that runs a command."""
    return next((test for part, test in EXECUTED_BY.items() if part in statement), None)


def to_run(page: Path) -> list[str]:
    """The page's blocks without what is marked or run by other tests, in their order; none that is empty."""
    found = []
    for block in blocks(page, "bash"):
        first, *rest = statements(block)
        if first.startswith("#") and mark(first):
            continue
        left = [each for each in (first, *rest) if not mark(each) and not executed_by(each)]
        text = "".join(left)
        for old, new in SUBSTITUTIONS.get(name(page), {}).items():
            text = text.replace(old, new)
        if text:
            found.append(text)
    return found
