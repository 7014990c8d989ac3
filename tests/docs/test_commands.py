"""Every command in the pages is one that its program takes: flags, values and bodies are parsed as they are printed."""

import json
from pathlib import Path

import pytest

from ropeswitch.server.cli import _make_parser
from tests.docs.pages import ROOT, commands, pages
from tests.serve_parser import serve_parser

PAGES = [page for page in pages() if commands(page, "ropeswitch") or commands(page, "curl")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_ropeswitch(page: Path) -> None:
    for words in commands(page, "ropeswitch"):
        # A pipe or the next command ends it.
        words = words[: next((at for at, word in enumerate(words) if word in ("|", "&&", "&")), len(words))]
        if words[0] == "serve":
            serve_parser().parse_args(words[1:])
        else:
            _make_parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_bodies_of_requests_are_json(page: Path) -> None:
    for words in commands(page, "curl"):
        body = words[words.index("-d") + 1] if "-d" in words else "{}"
        assert body.startswith("@") or isinstance(json.loads(body), dict)
