"""Grafana takes the dashboard as it is: panels that do not overlap, with units, and only variables that there are."""

import json
import re
from itertools import combinations

from tests.deploy.monitoring.files import BOARD, PANELS

# The last that Grafana's files of this kind have.
SCHEMA = 42


def _variables(text: object) -> set[str]:
    return set(re.findall(r"\$\{?(\w+)", json.dumps(text))) - {"__rate_interval", "__all"}


def test_it_names_no_data_source_or_variable_that_only_the_grafana_it_was_made_in_has() -> None:
    assert BOARD["schemaVersion"] == SCHEMA and BOARD["uid"] and "id" not in BOARD
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert _variables(BOARD) == set(names) and len(set(names)) == len(names)
    assert {*re.findall(r'"datasource": \{[^}]*"uid": "([^"]*)"', json.dumps(BOARD))} == {"${datasource}"}
    for place, variable in enumerate(BOARD["templating"]["list"]):
        assert variable["type"] != "query" or variable["definition"] == variable["query"]["query"]
        assert _variables(variable) <= set(names[:place])


def test_panels_do_not_overlap_and_have_a_title_a_unit_and_queries() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) and all(panel["title"] for panel in PANELS)
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] >= 0 < place["w"] and place["x"] + place["w"] <= 24 and place["h"] > 0 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            refs = [target["refId"] for target in panel["targets"]]
            assert refs and len(set(refs)) == len(refs) and all(target["expr"].strip() for target in panel["targets"])
