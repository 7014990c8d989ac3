"""docs/factor-rules.md: its commands run, every flag and rule is explained, and its table of bounds is what comes out."""

import re
import shutil
from pathlib import Path

import pytest

from ropeswitch.factors.check.base_bound import lower_bound
from ropeswitch.factors.rules.catalogue import RULES
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.cli import main
from tests.docs.pages import ROOT, commands

PAGE = ROOT / "docs" / "factor-rules.md"
# Lower bounds of the base for a head dimension of 128 (arXiv:2405.14591).
PUBLISHED = {"1k": 4.3e3, "2k": 1.6e4, "4k": 2.7e4, "8k": 8.4e4, "16k": 3.1e5, "32k": 6.4e5, "64k": 2.1e6}
PUBLISHED |= {"128k": 7.8e6, "256k": 3.6e7, "512k": 6.4e7, "1M": 5.1e8}
TEXT = PAGE.read_text(encoding="utf-8")
BOUNDS = re.findall(r"^\| (\d+[kM]) \| (\S+) \| (\S+) \| (\S+) \|", TEXT, re.MULTILINE)


@pytest.mark.full
def test_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BUNDLED_MODEL, tmp_path / "models" / BUNDLED_MODEL.name)
    monkeypatch.chdir(tmp_path)
    lines = commands(PAGE, "ropeswitch")
    assert len(lines) == 6
    for words in lines:
        assert main(words) == 0
    assert {"yarn.json", "dynamic.json", "found.json"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("command", ["rule", "check"])
def test_every_flag_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["factors", command, "--help"])
    flags = set(re.findall(r"^ +(?:-o [A-Z]+, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert len(flags) >= 7
    for flag in flags:
        assert re.search(rf"^\|.*`{flag}`.*\|", TEXT, re.MULTILINE), flag


def test_every_rule_is_explained() -> None:
    for rule in RULES:
        assert re.search(rf"^\|.*`{rule.name}`.*\|", TEXT, re.MULTILINE), rule.name


def test_the_table_of_bounds() -> None:
    assert {name: float(published) for name, published, _, _ in BOUNDS} == PUBLISHED
    _compare([row for row in BOUNDS if len(row[0]) == 2 and row[0] != "1M"])


@pytest.mark.full
def test_the_long_half_of_the_table_of_bounds() -> None:
    _compare([row for row in BOUNDS if len(row[0]) > 2 or row[0] == "1M"])


def _compare(rows: list[tuple[str, ...]]) -> None:
    for name, _, *ours in rows:
        number, power = int(name[:-1]), {"k": 1, "M": 2}[name[-1]]
        for kilo, bound in zip((1000, 1024), ours, strict=True):
            assert lower_bound(128, number * kilo**power) == pytest.approx(float(bound), rel=1e-9), name
