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


def test_there_is_a_dashboard() -> None:
    assert list(BOARDS) == ["ropeswitch.json"]


def test_it_stands_on_its_own(board: dict[str, Any]) -> None:
    """It names no data source or variable that only the Grafana it was made in has."""
    assert board["schemaVersion"] == SCHEMA and board["uid"] and "id" not in board
    names = [variable["name"] for variable in board["templating"]["list"]]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__all"}
    assert used == set(names) and len(set(names)) == len(names)
    assert {each["uid"] for each in _sources(board)} == {"${datasource}"}
    for place, variable in enumerate(board["templating"]["list"]):
        assert variable["type"] != "query" or variable["definition"] == variable["query"]["query"]
        before = set(re.findall(r"\$\{?(\w+)", json.dumps(variable))) - {"__all"}
        assert before <= set(names[:place])


def _sources(node: Any) -> list[dict[str, Any]]:
    """Every data source that something below ``node`` names."""
    if isinstance(node, list):
        return [each for item in node for each in _sources(item)]
    if not isinstance(node, dict):
        return []
    here = [node["datasource"]] if "datasource" in node else []
    return here + [each for item in node.values() for each in _sources(item)]


def test_panels_have_their_own_numbers_and_places(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    numbers = [panel["id"] for panel in panels(board)]
    assert len(set(numbers)) == len(numbers)
    for place in places:
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0 and place["w"] > 0
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_panels_tell_what_they_show(board: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(board) if panel["type"] == "row"]
    assert len(set(titles)) == len(titles) == 7
    for panel in panels(board):
        if panel["type"] == "row":
            continue
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) and all(target["expr"].strip() for target in panel["targets"])
