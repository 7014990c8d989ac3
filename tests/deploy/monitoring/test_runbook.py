"""Each alert has its entry in the runbook, and the runbook no other; what entries name is there."""

import re

from tests.deploy.monitoring.files import PANELS, alerts
from tests.deploy.monitoring.test_templates import LINK, ruled
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (Ropeswitch\w+)\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL))


def _anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_links_to_an_entry_that_says_what_to_do() -> None:
    assert list(ENTRIES) == list(alerts())
    for entry in ENTRIES.values():
        meaning, look, do = re.split(r"\n- \*\*(?:Look at|Do)\*\*", entry)
        assert meaning.strip() and look.strip() and do.strip()
    brought = [rule for group in ruled()["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    links = [rule["annotations"]["runbook_url"].removeprefix(f"{LINK}#") for rule in brought]
    assert sorted(links) == sorted(name.lower() for name in ENTRIES)
    assert set(links) <= _anchors(TEXT)


def test_the_panels_that_entries_name_are_on_the_dashboard() -> None:
    titles = {panel["title"] for panel in PANELS}
    named = {
        " ".join(name.split()) for entry in ENTRIES.values() for name in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", entry)
    }
    assert len(named) > 10 and named <= titles, named - titles
