"""What the pages tell the reader to type is what programs take, and where they point there is something."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from ropeswitch.deploy.plan.families import FAMILIES
from ropeswitch.factors import file
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server.cli import _make_parser, main
from ropeswitch.server.start import flags
from tests.docs.pages import ROOT, blocks, commands, pages
from tests.serve_parser import serve_parser

START, PLANNING = ROOT / "docs" / "start.md", ROOT / "docs" / "planning.md"
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z-]+):.* ## \w", MAKEFILE, re.MULTILINE)
_FOLDERS = "deploy|docs|factors|kernels|loadtests|model_patches|models|server|tests"
FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./-]*(?:\.\w+|/))`")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_files_and_make_targets_exist(page: Path) -> None:
    """A path in backticks counts from the root; a word in capitals is for the reader to fill in."""
    text = page.read_text(encoding="utf-8")
    links = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"https?://", target)]
    assert [target for target in links if not (page.parent / target).exists()] == []
    named = [name for name in FILE.findall(text) if not re.search(r"\b[A-Z]+\.", name)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    # A figure may name the commit whose target made it.
    made = re.findall(r"`make ([a-z-]+)[^`]*`(?!\s+of\s+commit)", text)
    assert {*made, *(words[0] for words in commands(page, "make"))} <= set(TARGETS)


def test_make_help_explains_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony and phony[1].split() == TARGETS


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_take_their_commands(page: Path) -> None:
    for words in commands(page, "ropeswitch"):
        # A pipe or the next command ends it.
        words = words[: next((at for at, word in enumerate(words) if word in ("|", "&&", "&")), len(words))]
        if words[0] == "serve":
            serve_parser().parse_args(words[1:])
        else:
            _make_parser().parse_args(words)
    for words in commands(page, "curl"):
        body = words[words.index("-d") + 1] if "-d" in words else "{}"
        assert body.startswith("@") or isinstance(json.loads(body), dict)


def test_the_bundled_model_answers_the_first_requests() -> None:
    """Those of docs/start.md: one in the first factor set, one in a longer one."""
    request = json.loads((words := commands(START, "curl")[0])[words.index("-d") + 1])
    said: dict[str, str] = {}
    for each in ast.parse(blocks(START, "python")[0]).body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.BinOp | ast.Constant):
            exec(ast.unparse(each), said)
    model, tokenizer = LocalModel.load(BUNDLED_MODEL), AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    ladder = file.load(BUNDLED_FACTORS).ladder
    for messages, is_long in ((request["messages"], False), ([{"role": "user", "content": said["question"]}], True)):
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        number = ladder.index_for(len(ids) + 20)
        assert (number > 0) == is_long
        [reply] = model.generate(torch.tensor([ids]), ladder.sets[number], 20)
        assert tokenizer.decode(reply).count("38120") == 1


def test_the_example_of_a_factor_file_is_valid() -> None:
    [example] = blocks(ROOT / "docs" / "factors.md", "json")
    assert file.parse(example).ladder.names == ("short", "long")


def test_every_flag_variable_and_planned_family_is_documented() -> None:
    ours = set(re.findall(r"^ +(--[a-z-]+)", flags.parser().format_help(), re.MULTILINE))
    assert [
        flag for flag in ours - {"--help", "--host", "--port"} if not re.search(f"`{flag}[ `]", CONFIGURATION)
    ] == []
    variables = re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE)
    assert [each for each in variables if f"`{each}`" not in CONFIGURATION] == []
    text = PLANNING.read_text(encoding="utf-8")
    assert [family for family in FAMILIES if not re.search(rf"\b{family}\b", text)] == []


def test_the_planner_prints_what_its_page_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of ``...`` stand for lines left out; the values are those of the last example."""
    monkeypatch.chdir(ROOT)
    examples = list(zip(commands(PLANNING, "ropeswitch"), blocks(PLANNING, "text"), strict=True))
    plans = {f"docs/plans/{each.name}" for each in (ROOT / "docs/plans").iterdir()}
    assert {words[1] for words, _ in examples} == plans
    for words, shown in examples:
        assert main(words) == 0
        printed = iter(capsys.readouterr().out.splitlines())
        for line in shown.splitlines():
            assert line == "..." or line in printed, line
    [shown] = blocks(PLANNING, "yaml")
    assert main([*examples[-1][0], "--helm", "-"]) == 0 and capsys.readouterr().out == shown
    assert [name for name in yaml.safe_load(shown) if f"`{name}" not in PLANNING.read_text(encoding="utf-8")] == []
