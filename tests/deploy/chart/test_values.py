"""values.yaml and its schema: every key is known, typed, has an effect, and may be null; wrong values are refused early."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from helm_python import HelmError, HelmValuesError

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.ladders.choice import parse
from ropeswitch.factors.rules.catalogue import RULES
from ropeswitch.model_patches.switch.config.settings import POLICIES
from tests.deploy.chart.helm import CASES, CHART, HERE, Values, case, chart, files, findings, pod, read, render
from tests.deploy.chart.kinds import check

Path = tuple[str, ...]
SCHEMA = read(CHART / "values.schema.json")
DEFAULTS = read(CHART / "values.yaml")
CHECKED = read(HERE / "checked.yaml")
OTHERS: dict[str, Any] = CHECKED["others"]
CONTEXTS: dict[str, Values] = CHECKED["contexts"]
SCALARS = (True, 1, 1.5, 10**12, "", "text", "1")
# Kubernetes' own objects, which its API checks, and what a chart above this one shares.
OPEN = {"global", "affinity", "podSecurityContext", "securityContext"}


def schema(node: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every key of the schema, and what it says of it."""
    reference = node.get("$ref")
    node = SCHEMA["definitions"][reference.rsplit("/", 1)[1]] if reference else node
    yield path, node
    for key, below in node.get("properties", {}).items():
        yield from schema(below, (*path, key))


def merged(values: Values, path: Path, value: Any) -> dict[str, Any]:
    key, *rest = path
    inner = values.get(key)
    return {**values, key: merged(inner if isinstance(inner, dict) else {}, tuple(rest), value) if rest else value}


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield every value that is no section of the schema."""
    if isinstance(value, dict) and (path == () or path in CLOSED):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    else:
        yield path


NODES = dict(schema(SCHEMA))
CLOSED = {path for path, node in NODES.items() if "properties" in node}
LEAVES = [path for path in leaves(DEFAULTS) if path[0] != "plan"]


def test_every_key_of_the_values_is_in_the_schema_and_none_else() -> None:
    for path, node in NODES.items():
        if node.get("type") == "object" and path[-1:] and path[-1] not in OPEN:
            assert node["additionalProperties"] is False or "type" in node["additionalProperties"], path
    # What differs between the pools is empty until a user says it; of resources only Kubernetes' own fields are below.
    below = {path for path in NODES if path[:2] == ("longPool", "values") and len(path) > 2}
    named = {path for path in NODES if path not in CLOSED} - below - {("global",)}
    assert {path for path in leaves(DEFAULTS)} == {path for path in named if "resources" not in path[:-1]} | {
        path for path in leaves(DEFAULTS) if "resources" in path or path[:2] == ("longPool", "values")
    }
    chart().validate_schema({"global": {"registry": "example.com"}})


def test_unknown_keys_and_wrong_types_are_refused_everywhere() -> None:
    for path in NODES:
        if path in CLOSED:
            with pytest.raises(HelmValuesError, match="unknownKey"):
                chart().validate_schema(merged({}, (*path, "unknownKey"), 1))
        elif path[-1] not in OPEN:
            with pytest.raises(HelmValuesError):
                chart().validate_schema(merged({}, path, {"a": {"list of": ["maps"]}}))


def other(path: Path) -> Any:
    """Return a valid value that differs from the default."""
    name, node, value = ".".join(path), NODES[path], DEFAULTS
    for key in path:
        value = value[key]
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, dict):
        return {"a": "b"}
    if isinstance(value, list):
        return ["a"]
    if "enum" in node:
        return next(each for each in reversed(node["enum"]) if each not in (value, ""))
    return "other"


def shown(values: Values) -> dict[str, str] | None:
    """Return what values render to, or None if the chart refuses them."""
    try:
        return files(values)
    except HelmError:
        return None


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_every_value_changes_what_is_rendered(path: Path) -> None:
    name = ".".join(path)
    default: Any = DEFAULTS
    for key in path:
        default = default[key]
    for context in [CONTEXTS[name]] if name in CONTEXTS else map(case, ("everything", *CASES)):
        # The default is another value in a context that sets it.
        for own in (other(path), default):
            if (after := shown(merged(context, path, own))) is not None and after != shown(context):
                return
    pytest.fail(f"{name}: {other(path)!r} changes nothing")


def places() -> Iterator[Path]:
    """Yield every name at the first and second level."""
    for name, value in DEFAULTS.items():
        yield (name,)
        yield from ((name, inner) for inner in value) if isinstance(value, dict) else ()


@pytest.mark.parametrize("place", [*places()], ids=".".join)
def test_null_means_the_default(place: Path) -> None:
    """Also a section with only comments below its name."""
    if place[0] in ("podSecurityContext", "securityContext") and len(place) > 1:
        # Removed on purpose, as on OpenShift.
        assert place[1] not in pod(merged({}, place, None)).get(place[0], {})
    else:
        assert render(merged({}, place, None)) == render({})


def test_null_is_absent_below_the_second_level() -> None:
    pools = {"longPool": {"enabled": True, "values": {}}}
    below = ("resources.limits", "affinity.nodeAffinity", "loadTest.argumentsByWorkload.chat")
    for place in (*below, "longPool.values.server.extraEnv"):
        assert render(merged(pools, tuple(place.split(".")), None)) == render(pools), place


@pytest.mark.parametrize("place", [*places()], ids=".".join)
def test_any_scalar_renders_valid_objects_or_is_refused(place: Path) -> None:
    for odd in SCALARS:
        try:
            chart().validate_schema(merged({}, place, odd))
            objects = render(merged({}, place, odd))
        except HelmValuesError:
            continue
        except HelmError as error:
            # The chart's own checks fail with a sentence; a template that breaks names its place.
            text = str(error).replace("error calling fail", "")
            assert "nil pointer" not in text and "error calling" not in text, error
            continue
        for each in objects:
            if each not in render({}):
                check(each, "1.31")


def replaced(node: Any, text: Any) -> Any:
    """Return a value in which X is another one."""
    if isinstance(node, dict):
        return {key: replaced(value, text) for key, value in node.items()}
    return [replaced(each, text) for each in node] if isinstance(node, list) else text if node == "X" else node


@pytest.mark.parametrize("odd", ["123", "1e5", "true"])
def test_names_that_look_like_numbers_stay_text(odd: str) -> None:
    values = replaced(CHECKED["names"], odd)
    for each in render(values):
        check(each, "1.31")
    assert f"'{odd}'" in str(pod(values)["volumes"]) and pod(values)["priorityClassName"] == odd


@pytest.mark.parametrize("values", CHECKED["texts"], ids=str)
def test_numbers_are_refused_where_kubernetes_wants_text(values: Values) -> None:
    for odd in (True, 0, 1.5, 10**12):
        with pytest.raises(HelmValuesError):
            chart().validate_schema(replaced(values, odd))
        chart().validate_schema(replaced(values, str(odd)))


@pytest.mark.parametrize("values", CHECKED["wrong"], ids=str)
def test_what_kubernetes_or_the_server_would_refuse_is_refused(values: Values) -> None:
    with pytest.raises(HelmValuesError, match=next(iter(values))):
        chart().validate_schema(dict(values))


@pytest.mark.parametrize("values", CHECKED["right"], ids=str)
def test_what_kubernetes_accepts_is_accepted(values: Values) -> None:
    assert findings(values) == []


def test_the_schema_accepts_exactly_the_ladders_that_the_server_does() -> None:
    rules = [each.name for each in RULES]
    for text in ("auto", "none", "yarn:64k,128k", "yarn:65536", "yarn:2x,4.5x", "ntk:1M", *rules):
        parse(text)
        chart().validate_schema({"ladder": text})
    for text in (*"yarm yarn: yarn:64k, yarn:,64k yarn:x yarn:64q auto:2x none:64k file:".split(), " yarn"):
        with pytest.raises(FactorError):
            parse(text)
        with pytest.raises(HelmValuesError, match="ladder"):
            chart().validate_schema({"ladder": text})
    for policy in POLICIES:
        chart().validate_schema({"ladderPolicy": policy})


def test_templates_fall_back_to_the_values_files_defaults() -> None:
    """Under ``--reuse-values``, Helm leaves out new defaults; templates have their own copy: values.yaml as sorted YAML."""
    assert (CHART / "files" / "defaults.yaml").read_text(encoding="utf-8") == yaml.safe_dump(DEFAULTS)
