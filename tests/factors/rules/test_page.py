"""docs/factor-rules.md: every rule is explained, and its table of bounds is what comes out."""

import re

import pytest

from ropeswitch.factors.check.base_bound import lower_bound
from ropeswitch.factors.rules.catalogue import RULES
from tests.docs.pages import ROOT

# Lower bounds of the base for a head dimension of 128 (arXiv:2405.14591).
PUBLISHED = {"1k": 4.3e3, "2k": 1.6e4, "4k": 2.7e4, "8k": 8.4e4, "16k": 3.1e5, "32k": 6.4e5, "64k": 2.1e6}
PUBLISHED |= {"128k": 7.8e6, "256k": 3.6e7, "512k": 6.4e7, "1M": 5.1e8}
TEXT = (ROOT / "docs" / "factor-rules.md").read_text(encoding="utf-8")
BOUNDS = re.findall(r"^\| (\d+[kM]) \| (\S+) \| (\S+) \| (\S+) \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_every_rule_is_explained(name: str) -> None:
    assert re.search(rf"^\|.*`{name}`.*\|", TEXT, re.MULTILINE)


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_table_of_bounds(is_long: bool) -> None:
    assert {name: float(published) for name, published, _, _ in BOUNDS} == PUBLISHED
    for name, _, *ours in BOUNDS:
        if (len(name) > 2 or name == "1M") == is_long:
            number, power = int(name[:-1]), {"k": 1, "M": 2}[name[-1]]
            for kilo, bound in zip((1000, 1024), ours, strict=True):
                assert lower_bound(128, number * kilo**power) == pytest.approx(float(bound), rel=1e-9), name
