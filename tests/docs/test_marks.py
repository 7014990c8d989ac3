"""Every command of the pages is run by a test, or its mark says what it needs."""

import ast
import re

import pytest

from tests.docs.marks import EXECUTED_BY, MARK, SUBSTITUTIONS, mark, name
from tests.docs.pages import ROOT, blocks, pages, statements

PAGES = {name(page): page for page in pages()}
EVERY = [(page, each) for page in PAGES.values() for block in blocks(page, "bash") for each in statements(block)]


def test_every_shell_block_is_found() -> None:
    """Blocks in another shell's name, or indented by tabs, would not be run."""
    for page in PAGES.values():
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"^\s*```(?:sh|shell|console|zsh)$", text, re.MULTILINE), page
        assert len(re.findall(r"```bash$", text, re.MULTILINE)) == len(blocks(page, "bash")), page


def test_marks_name_what_is_known() -> None:
    found = [(name(page), text) for page, each in EVERY if (text := mark(each))]
    assert found and [(page, text) for page, text in found if not MARK.fullmatch(text)] == []


@pytest.mark.parametrize("part", EXECUTED_BY)
def test_other_tests_that_run_a_command_exist(part: str) -> None:
    file, _, test = EXECUTED_BY[part].partition("::")
    assert any(part in each for _, each in EVERY)
    functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert test in [each.name for each in functions if isinstance(each, ast.FunctionDef)]


@pytest.mark.parametrize("page", SUBSTITUTIONS)
def test_substitutions_are_needed(page: str) -> None:
    text = "".join(blocks(PAGES[page], "bash"))
    assert [old for old in SUBSTITUTIONS[page] if old not in text] == []
