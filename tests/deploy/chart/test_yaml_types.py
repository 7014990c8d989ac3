"""Every value as null and as each YAML scalar: the chart renders valid objects, or refuses the value by its schema."""

from collections.abc import Iterator
from typing import Any

import pytest
from helm_python import HelmValuesError

from tests.deploy.chart.helm import CHART, Values, chart, findings, pod_of, render
from tests.deploy.chart.kinds import check
from tests.deploy.chart.renew import defaults

SCALARS = (True, False, 0, 1, 1.5, 10**12, "", "text", "1", "true")
# What a section with only comments below its name leaves, and values that hide in the items of lists.
ITEMS: dict[str, Any] = {
    "tolerations": lambda odd: [{"key": "gpu", "value": odd}],
    "server.extraEnv": lambda odd: [{"name": "A", "value": odd}],
    "server.extraEnvFrom": lambda odd: [{"configMapRef": {"name": odd}}],
    "server.extraVolumes": lambda odd: [{"name": "a", "configMap": {"name": odd}}],
    "server.extraVolumeMounts": lambda odd: [{"name": "a", "mountPath": odd}],
    "server.extraContainers": lambda odd: [{"name": "a", "image": "a", "env": [{"name": "A", "value": odd}]}],
    "server.extraInitContainers": lambda odd: [{"name": "a", "image": "a", "args": [odd]}],
    "server.extraArgs": lambda odd: [odd],
    "affinity": lambda odd: {
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "a", "labelSelector": {"matchLabels": {"a": odd}}}}
            ]
        }
    },
    "networkPolicy.from": lambda odd: [{"podSelector": {"matchLabels": {"a": odd}}}],
    "podLabels": lambda odd: {"a": odd},
    "podAnnotations": lambda odd: {"a": odd},
    "nodeSelector": lambda odd: {"a": odd},
    "podSecurityContext": lambda odd: {"seLinuxOptions": {"level": odd}},
}


def places() -> Iterator[tuple[str, ...]]:
    """Every name at the first and second level of the values."""
    for name, value in chart().values.items():
        yield (name,)
        if isinstance(value, dict):
            yield from ((name, inner) for inner in value)


def values_of(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(place):
        value = {name: value}
    return dict(value)


def valid_or_refused(values: Values) -> bool:
    """Whether the chart renders; if so, check every object."""
    try:
        objects = render(values)
    except HelmValuesError:
        return False
    except Exception as error:
        # The chart's own checks fail with a sentence; a template that breaks names its place.
        assert "nil pointer" not in str(error) and "error calling" not in str(error).replace(
            "error calling fail", ""
        ), error
        return False
    for each in objects:
        check(each, "1.31")
    return True


@pytest.mark.parametrize("place", list(places()), ids=".".join)
def test_null_is_the_default(place: tuple[str, ...]) -> None:
    if place[0] in ("podSecurityContext", "securityContext") and len(place) > 1:
        # Removed on purpose, as on OpenShift.
        assert valid_or_refused(values_of(place, None))
    else:
        assert render(values_of(place, None)) == render({})


@pytest.mark.parametrize("place", list(places()), ids=".".join)
def test_scalars_are_valid_or_refused(place: tuple[str, ...]) -> None:
    for odd in SCALARS:
        valid_or_refused(values_of(place, odd))


@pytest.mark.parametrize("name", ITEMS)
def test_items_that_must_be_text(name: str) -> None:
    place = tuple(name.split("."))
    for odd in (True, 0, 1, 1.5, 10**12):
        with pytest.raises(HelmValuesError):
            render(values_of(place, ITEMS[name](odd)))
    for text in ("1", "true", "text"):
        assert valid_or_refused(values_of(place, ITEMS[name](text))), text


@pytest.mark.parametrize(
    "place",
    [
        "resources.limits", "affinity.nodeAffinity", "loadTest.argumentsByWorkload.chat",
        "longPool.values.server", "longPool.values.server.extraEnv", "longPool.values.resources",
        "longPool.values.autoscaling", "longPool.values.tolerations",
    ],
)  # fmt: skip
def test_null_is_absent_below_the_second_level(place: str) -> None:
    pools = {"longPool": {"enabled": True, "values": {}}}
    values = {"longPool": {"enabled": True}} | values_of(tuple(place.split(".")), None)
    if place.startswith("longPool"):
        values["longPool"]["enabled"] = True
    assert render(values) == render(pools)


# Fields of Kubernetes' own objects, right and wrong.
CONTAINER = {"name": "a", "image": "b"}
RIGHT: list[dict[str, Any]] = [
    {"server": {"extraContainers": [CONTAINER | {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}]}},
    {
        "server": {
            "extraInitContainers": [
                CONTAINER
                | {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}
            ]
        }
    },
    {"server": {"extraContainers": [CONTAINER | {"livenessProbe": {"grpc": {"port": 80}}}]}},
    {"resources": {"limits": {"cpu": "500m", "memory": "64Gi"}, "requests": {"cpu": 1.5}}},
]
WRONG: list[dict[str, Any]] = [
    {"gateway": {"enabled": True, "parentRefs": [{"name": "a", "port": "443"}]}},
    {"server": {"extraContainers": [CONTAINER | {"livenessProbe": {"grpc": {"port": "80"}}}]}},
    {"server": {"extraContainers": [CONTAINER | {"command": "sh"}]}},
    {"server": {"extraContainers": [CONTAINER | {"args": {"a": "b"}}]}},
    {"server": {"extraContainers": [CONTAINER | {"image": ["b"]}]}},
    {"server": {"extraVolumes": [{"name": "a", "configMap": "x"}]}},
    {"server": {"extraVolumeMounts": [{"name": "a", "mountPath": ["x"]}]}},
    {"networkPolicy": {"from": [{"ipBlock": "10.0.0.0/8"}]}},
    {"networkPolicy": {"extraEgress": [{"ports": {"port": 443}}]}},
    {"ingress": {"tls": [{"hosts": "a.b"}]}},
    {"podSecurityContext": {"sysctls": {"a": "b"}}},
    {"resources": {"limits": {"memory": "64GB"}}},
    {"resources": {"limits": {"cpu": -1}}},
    {"extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": 1}}]},
]


@pytest.mark.parametrize("values", RIGHT)
def test_what_kubernetes_takes_is_taken(values: Values) -> None:
    assert findings(values, "1.31") == []


@pytest.mark.parametrize("values", WRONG)
def test_what_kubernetes_refuses_is_refused(values: Values) -> None:
    with pytest.raises(HelmValuesError):
        render(values)


def test_a_field_of_kubernetes_can_be_removed() -> None:
    assert "runAsUser" not in pod_of({"podSecurityContext": {"runAsUser": None}})["securityContext"]


def test_the_templates_have_the_defaults() -> None:
    """`make chart-golden` writes them."""
    assert (CHART / "files" / "defaults.yaml").read_text(encoding="utf-8") == defaults()
    assert findings({"resources": None, "server": {"extraEnv": None}}, "1.31") == []
