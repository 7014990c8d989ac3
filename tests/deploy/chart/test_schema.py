"""values.schema.json takes the defaults, knows every key, and refuses every other key and every wrong type."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from helm_python import HelmValuesError

from tests.deploy.chart.helm import CHART, Values, chart

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
WRONG = {"a": {"list of": ["maps"]}}


def resolve(node: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref")
    return SCHEMA["definitions"][reference.rsplit("/", 1)[1]] if reference else node


def nodes(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every key that the schema names, and what it says of it."""
    node = resolve(node)
    yield path, node
    for key, below in node.get("properties", {}).items():
        yield from nodes(below, (*path, key))


def at(path: tuple[str, ...], value: object) -> Values:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


ALL = dict(nodes(SCHEMA))
CLOSED = [path for path, node in ALL.items() if "properties" in node]
# Kubernetes' own objects, which its API checks, and what a chart above this one shares.
OPEN = {"global", "affinity", "podSecurityContext", "securityContext"}


def test_every_object_is_closed() -> None:
    for path, node in ALL.items():
        if node.get("type") == "object" and path[-1:] and path[-1] not in OPEN:
            assert node["additionalProperties"] is False or "type" in node["additionalProperties"], path


@pytest.mark.parametrize("path", CLOSED, ids=".".join)
def test_an_unknown_key_is_refused(path: tuple[str, ...]) -> None:
    with pytest.raises(HelmValuesError, match="unknownKey"):
        chart().validate_schema(dict(at((*path, "unknownKey"), 1)))


@pytest.mark.parametrize(
    "path", [path for path in ALL if path and path not in CLOSED and path[-1] not in OPEN], ids=".".join
)
def test_a_wrong_type_is_refused(path: tuple[str, ...]) -> None:
    with pytest.raises(HelmValuesError):
        chart().validate_schema(dict(at(path, WRONG)))


def test_values_and_schema_have_the_same_keys() -> None:
    def keys(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        yield path
        if isinstance(value, dict) and (path == () or path in CLOSED):
            for key, below in value.items():
                yield from keys(below, (*path, key))

    # What differs between the pools is empty until a user says it.
    named = {path for path in ALL if path[:2] != ("longPool", "values") or len(path) == 2} - {("global",)}
    inside = {path for path in named if "resources" in path[:-1]}
    assert set(keys(DEFAULTS)) - inside == named - inside


def test_a_chart_above_may_share_values() -> None:
    chart().validate_schema({"global": {"registry": "example.com"}})
