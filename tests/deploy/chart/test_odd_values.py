"""Values that YAML would read as something else, long names, and what differs between pools."""

from typing import Any

import pytest
import yaml

from tests.deploy.chart.helm import CASES, Values, case, files, one, pods, render
from tests.deploy.chart.kinds import check

# What YAML without quotes takes for numbers, truth, comments or maps.
ODD = ("123", "1e5", "true", "a: b", "a # b")


@pytest.mark.parametrize("odd", ("123", "1e5"))
def test_names_that_look_like_numbers(odd: str) -> None:
    values: Values = {
        "model": "m",
        "modelSource": {"type": "pvc", "pvc": {"claimName": odd}},
        "apiKeys": {"enabled": True, "existingSecret": odd},
        "tls": {"enabled": True, "existingSecret": odd},
        "metrics": {"key": {"existingSecret": odd}, "serviceMonitor": {"enabled": True}},
        "factors": {"existingConfigMap": odd},
        "priorityClassName": odd,
        "serviceAccount": {"create": False, "name": odd},
    }
    objects = render(values)
    for each in objects:
        check(each, "1.31")
    pod = pods(objects)["demo-ropeswitch"]
    assert pod["priorityClassName"] == pod["serviceAccountName"] == odd
    named = {each["name"]: each for each in pod["volumes"]}
    assert named["keys"]["secret"]["secretName"] == named["tls"]["secret"]["secretName"] == odd
    assert named["model"]["persistentVolumeClaim"]["claimName"] == named["factors"]["configMap"]["name"] == odd


@pytest.mark.parametrize("odd", ODD)
def test_header_values_are_text(odd: str) -> None:
    values: Values = {
        "longPool": {"enabled": True, "header": {"name": "x-pool", "value": odd}},
        "ingress": {"enabled": True, "hosts": ["a.example.com"]},
    }
    found = one(render(values), "Ingress", "demo-ropeswitch-long")["metadata"]["annotations"]
    assert found["nginx.ingress.kubernetes.io/canary-by-header-value"] == odd


@pytest.mark.parametrize("content", ["{}", '  {\n "sets": []\n}', "\t{}", '{"name": "\u00e9 # \'"}\n'])
def test_a_factor_file_arrives_as_it_is(content: str) -> None:
    assert one(render({"factors": {"content": content}}), "ConfigMap", "demo-ropeswitch-factors")["data"] == {
        "factors.json": content
    }


def test_the_first_ingress_lets_the_largest_body_of_any_pool_through() -> None:
    """ingress-nginx looks at its annotation alone."""
    values: Values = {
        "longPool": {"enabled": True, "values": {"server": {"maxBodyMiB": 512}}},
        "ingress": {"enabled": True, "hosts": ["a.example.com"]},
    }
    found = one(render(values), "Ingress", "demo-ropeswitch")["metadata"]["annotations"]
    assert found["nginx.ingress.kubernetes.io/proxy-body-size"] == "512m"


def test_annotations_and_labels_of_the_users_own() -> None:
    """Theirs count where there are two; of labels the chart's do, as objects find each other by them."""
    size = "nginx.ingress.kubernetes.io/proxy-body-size"
    values: Values = {
        "ingress": {"enabled": True, "hosts": ["a.example.com"], "annotations": {size: "1m"}},
        "commonLabels": {"app.kubernetes.io/name": "other", "team": "llm"},
    }
    metadata = one(render(values), "Ingress")["metadata"]
    assert metadata["annotations"][size] == "1m"
    assert metadata["labels"]["app.kubernetes.io/name"] == "ropeswitch" and metadata["labels"]["team"] == "llm"


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is there twice, as kustomize does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice: {sorted(key for key in keys if keys.count(key) > 1)}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("name", [*CASES, "own"])
def test_no_key_is_there_twice(name: str) -> None:
    own = {"release": "mine", "app.kubernetes.io/component": "mine", "app.kubernetes.io/name": "mine"}
    enabled = {"enabled": True, "labels": own}
    values: Values = {
        "commonLabels": own,
        "podLabels": own,
        "podAnnotations": {"kubectl.kubernetes.io/default-container": "mine"},
        "metrics": {
            "serviceMonitor": enabled,
            "prometheusRule": enabled,
            "dashboards": {**enabled, "folder": "a", "annotations": {"grafana_folder": "b"}},
        },
        "longPool": {"enabled": True},
    }
    for path, text in files(values if name == "own" else case(name)).items():
        if path.endswith(".yaml"):
            list(yaml.load_all(text, _OnceLoader))


def test_a_label_has_room_for_the_names_of_groups() -> None:
    """A LeaderWorkerSet's worker groups are StatefulSets NAME-0, whose pods have a label with a hash behind that name."""
    group = {"parallelism": {"tensor": 2, "nodes": 2, "gpusPerNode": 1}}
    values: Values = {"fullnameOverride": "a" * 60, "longPool": {"enabled": True, "values": group}, **group}
    names = [each["metadata"]["name"] for each in render(values) if each["kind"] == "LeaderWorkerSet"]
    assert len(names) == 2 and all(len(f"{name}-99-0123456789") <= 63 for name in names)


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://minio.minio.svc:9000", 9000),
        ("http://minio:9000/", 9000),
        ("http://minio/a", 80),
        ("https://store.example.com", 443),
    ],
)
def test_the_object_store_can_be_reached(endpoint: str, port: int) -> None:
    store: dict[str, Any] = {"uri": "s3://models/m", "endpoint": endpoint, "credentialsSecret": "s"}
    values: Values = {"model": "m", "modelSource": {"type": "objectStore", "objectStore": store}}
    rules = one(render(values), "NetworkPolicy")["spec"]["egress"]
    assert {"ports": [{"port": port, "protocol": "TCP"}]} in rules
    assert not any("ipBlock" in str(each) for each in rules)
    del store["credentialsSecret"]
    assert any("169.254.0.0/16" in str(each) for each in one(render(values), "NetworkPolicy")["spec"]["egress"])


def test_a_worker_waits_no_longer_than_its_process_lives() -> None:
    values = yaml.safe_load("parallelism: {tensor: 2, nodes: 2, gpusPerNode: 1}")
    [worker] = pods(render(values))["demo-ropeswitch/worker"]["containers"]
    assert worker["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "45"]}}
