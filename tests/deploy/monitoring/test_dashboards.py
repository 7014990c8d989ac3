"""Grafana takes the dashboards as they are: panels that do not overlap, with units, and only variables that there are."""

import json
import re
from itertools import combinations
from typing import Any

import pytest

from tests.deploy.monitoring.files import boards, panels

BOARDS = dict(boards())
# The last that Grafana's files of this kind have.
SCHEMA = 42


@pytest.fixture(params=BOARDS, ids=str)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    return BOARDS[request.param]


def test_it_names_no_data_source_or_variable_that_only_the_grafana_it_was_made_in_has(board: dict[str, Any]) -> None:
    assert (
        list(BOARDS) == ["ropeswitch.json"] and board["schemaVersion"] == SCHEMA and board["uid"] and "id" not in board
    )
    names = [variable["name"] for variable in board["templating"]["list"]]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__all"}
    assert used == set(names) and len(set(names)) == len(names)
    assert {*re.findall(r'"datasource": \{[^}]*"uid": "([^"]*)"', json.dumps(board))} == {"${datasource}"}
    for place, variable in enumerate(board["templating"]["list"]):
        assert variable["type"] != "query" or variable["definition"] == variable["query"]["query"]
        before = set(re.findall(r"\$\{?(\w+)", json.dumps(variable))) - {"__all"}
        assert before <= set(names[:place])


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    numbers = [panel["id"] for panel in panels(board)]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] >= 0 < place["w"] and place["x"] + place["w"] <= 24 and place["h"] > 0 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_every_panel_has_a_title_a_unit_and_queries(board: dict[str, Any]) -> None:
    for panel in panels(board):
        if panel["type"] != "row":
            assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            refs = [target["refId"] for target in panel["targets"]]
            assert refs and len(set(refs)) == len(refs) and all(target["expr"].strip() for target in panel["targets"])
    titles = [panel["title"] for panel in panels(board) if panel["type"] == "row"]
    assert all(panel["title"] for panel in panels(board)) and len(set(titles)) == len(titles)
