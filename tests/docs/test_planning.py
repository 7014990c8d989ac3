"""docs/planning.md prints what its commands print, and explains every flag."""

import re

import pytest
import yaml

from ropeswitch.deploy.plan.families import FAMILIES
from ropeswitch.server.cli import main
from tests.docs.pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "planning.md"
PLANS = ROOT / "docs" / "plans"


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_every_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of ``...`` stand for lines left out."""
    examples = list(zip(commands(PAGE, "ropeswitch"), blocks(PAGE, "text"), strict=True))
    assert {words[1] for words, _ in examples} == {f"docs/plans/{each.name}" for each in PLANS.iterdir()}
    for words, shown in examples:
        assert main(words) == 0
        printed = iter(capsys.readouterr().out.splitlines())
        for line in shown.splitlines():
            assert line == "..." or line in printed, line


def test_the_values_are_those_of_the_last_example(capsys: pytest.CaptureFixture[str]) -> None:
    [shown] = blocks(PAGE, "yaml")
    assert main([*commands(PAGE, "ropeswitch")[-1], "--helm", "-"]) == 0
    assert capsys.readouterr().out == shown
    text = PAGE.read_text(encoding="utf-8")
    for name in yaml.safe_load(shown):
        assert f"`{name}" in text


def test_every_flag_and_family_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    text = PAGE.read_text(encoding="utf-8")
    for flag in set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}:
        assert re.search(rf"^\| `{flag}[ `]", text, re.MULTILINE), flag
    for family in FAMILIES:
        assert re.search(rf"\b{family}\b", text), family
