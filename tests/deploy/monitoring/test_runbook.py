"""Each alert has its entry in the runbook, and the runbook no other; what entries name is there."""

import re

import pytest

from tests.deploy.monitoring.files import RUNBOOK, alerts, boards, panels
from tests.deploy.monitoring.test_templates import LINK, ruled
from tests.docs.pages import ROOT

TEXT = RUNBOOK.read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (Ropeswitch\w+)\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL))


def _anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_entries_are_those_of_the_alerts_in_their_order() -> None:
    assert list(ENTRIES) == list(alerts())


def test_links_of_the_rendered_alerts_lead_to_entries() -> None:
    brought = [rule for group in ruled()["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    links = [rule["annotations"]["runbook_url"].removeprefix(f"{LINK}#") for rule in brought]
    assert sorted(links) == sorted(name.lower() for name in ENTRIES)
    assert set(links) <= _anchors(TEXT)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_means_and_what_to_do(name: str) -> None:
    meaning, look, do = re.split(r"\n- \*\*(?:Look at|Do)\*\*", ENTRIES[name])
    assert meaning.strip() and look.strip() and do.strip()


def test_anchors_that_entries_link_to_are_there() -> None:
    for page, anchor in re.findall(r"\]\((\w+\.md)?#([\w-]+)\)", TEXT):
        assert anchor in _anchors((ROOT / "docs" / page).read_text(encoding="utf-8") if page else TEXT), anchor


def test_panels_that_entries_name_are_on_the_dashboard() -> None:
    titles = {panel["title"] for _, board in boards() for panel in panels(board)}
    named = {
        " ".join(name.split()) for entry in ENTRIES.values() for name in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", entry)
    }
    assert len(named) > 10 and named <= titles, named - titles
