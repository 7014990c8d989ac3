"""docs/factor-rules.md: every rule is explained."""

import re

import pytest

from ropeswitch.factors.rules.catalogue import RULES
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "factor-rules.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_every_rule_is_explained(name: str) -> None:
    assert re.search(rf"^\|.*`{name}`.*\|", TEXT, re.MULTILINE)
