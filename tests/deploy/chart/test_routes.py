"""Who reaches the servers: routes, pools, policies, and autoscalers by queue."""

from typing import Any

import pytest

from ropeswitch.server.front.flags import BODY_BYTES, BODY_BYTES_PER_TOKEN
from tests.deploy.chart.helm import Values, case, one, render, templates

HOSTS = {"ingress": {"enabled": True, "hosts": ["a.example.com"]}}
NGINX = "nginx.ingress.kubernetes.io/"
KEDA = {"enabled": True, "serverAddress": "http://a"}


def annotations(values: Values, name: str = "demo-ropeswitch") -> dict[str, str]:
    found: dict[str, str] = one(render(values), "Ingress", name)["metadata"]["annotations"]
    return found


@pytest.mark.parametrize("name", ["cpu", "everything", "inference-pool"])
def test_the_routes_of_clients_are_public_and_the_metrics_are_not(name: str) -> None:
    routed: dict[str, list[str]] = {}
    for each in render(case(name)):
        if each["kind"] == "Ingress":
            paths = each["spec"]["rules"][0]["http"]["paths"]
            assert {path["pathType"] for path in paths} == {"Prefix"}
            routed[f"Ingress {each['metadata']['name']}"] = [path["path"] for path in paths]
        if each["kind"] == "HTTPRoute":
            for rule in each["spec"]["rules"]:
                pool = rule["backendRefs"][0]["name"]
                routed.setdefault(f"HTTPRoute {pool}", []).extend(match["path"]["value"] for match in rule["matches"])
    assert len(routed) == {"cpu": 1, "everything": 4, "inference-pool": 1}[name]
    for prefixes in routed.values():
        for path in (
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/rope",
            "/tokenize",
            "/health/ready",
            "/ui",
            "/ui/chat",
        ):
            assert any(f"{path}/".startswith(f"{prefix}/") for prefix in prefixes), path
        for path in ("/metrics", "/metrics/", "/reset_prefix_cache", "/sleep"):
            assert not any(f"{path}/".startswith(f"{prefix.rstrip('/')}/") for prefix in prefixes), path


def test_the_header_chooses_the_pool_on_every_path() -> None:
    objects = render(case("everything"))
    rules = one(objects, "HTTPRoute")["spec"]["rules"]
    header = [{"type": "Exact", "name": "x-ropeswitch-pool", "value": "long"}]
    for rule in rules:
        headers = {str(match.get("headers")) for match in rule["matches"]}
        [backend] = rule["backendRefs"]
        assert headers == {str(header)} if backend["name"].endswith("-long") else headers == {"None"}
        assert backend["name"] in ("demo-ropeswitch-long", "demo-ropeswitch-short")
    long, first = (annotations(case("everything"), f"demo-ropeswitch{end}") for end in ("-long", ""))
    assert (long[f"{NGINX}canary-by-header"], long[f"{NGINX}canary-by-header-value"]) == ("x-ropeswitch-pool", "long")
    assert long[f"{NGINX}canary"] == "true" and f"{NGINX}canary" not in first
    reached = {
        each["metadata"]["name"]: {
            name
            for name, _, template in templates(objects)
            if each["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        }
        for each in objects
        if each["kind"] == "Service"
    }
    main, other = "demo-ropeswitch", "demo-ropeswitch-long"
    assert reached == {f"{main}-short": {main}, other: {other}, main: {main, other}}


@pytest.mark.parametrize("tokens", [0, 1000, 2097152, 4194305])
def test_routes_let_through_the_largest_body_of_any_pool(tokens: int) -> None:
    accepted = max(BODY_BYTES, BODY_BYTES_PER_TOKEN * tokens)
    for values in ({"maxModelLen": tokens}, {"longPool": {"enabled": True, "values": {"maxModelLen": tokens}}}):
        size = annotations(HOSTS | values)[f"{NGINX}proxy-body-size"]
        assert size.endswith("m") and accepted <= int(size[:-1]) << 20 < accepted + (1 << 20)


def test_routes_wait_for_long_prompts_and_stream() -> None:
    values = {**case("everything"), "requestTimeoutSeconds": 7200}
    for rule in one(render(values), "HTTPRoute")["spec"]["rules"]:
        assert rule["timeouts"] == {"request": "7200s", "backendRequest": "7200s"}
    for name in ("demo-ropeswitch", "demo-ropeswitch-long"):
        found = annotations(values, name)
        assert found[f"{NGINX}proxy-read-timeout"] == found[f"{NGINX}proxy-send-timeout"] == "7200"
        assert found[f"{NGINX}proxy-buffering"] == found[f"{NGINX}proxy-request-buffering"] == "off"


def test_the_users_annotations_and_class_win_but_not_labels_that_objects_find_each_other_by() -> None:
    own = {**HOSTS["ingress"], "annotations": {f"{NGINX}proxy-body-size": "1m"}, "className": ""}
    values = {"ingress": own, "commonLabels": {"app.kubernetes.io/name": "other"}}
    found = one(render(values), "Ingress")
    assert (
        found["metadata"]["annotations"][f"{NGINX}proxy-body-size"] == "1m" and "ingressClassName" not in found["spec"]
    )
    assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "ropeswitch"
    tls = {**HOSTS, "tls": {"enabled": True, "existingSecret": "a"}}
    assert annotations(tls)[f"{NGINX}backend-protocol"] == "HTTPS"


def test_a_policy_with_sources_still_lets_the_releases_own_tests_in() -> None:
    objects = render(case("everything"))
    gateway, own = one(objects, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert gateway == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}}}
    [expression] = own["podSelector"]["matchExpressions"]
    found = {
        component
        for _, component, template in templates(objects)
        if own["podSelector"]["matchLabels"].items() <= (labels := template["metadata"]["labels"]).items()
        and labels[expression["key"]] in expression["values"]
    }
    assert found == {"test", "loadtest"} and "from" not in one(render({}), "NetworkPolicy")["spec"]["ingress"][0]


@pytest.mark.parametrize(("name", "out"), [("minimal", False), ("single-node", False), ("two-nodes", True)])
def test_only_a_model_from_elsewhere_opens_the_way_out(name: str, out: bool) -> None:
    egress = one(render(case(name)), "NetworkPolicy")["spec"]["egress"]
    # Every other rule names its peers, or is for names alone.
    ports = {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}
    assert ports == {53, 443} if out else ports == {53}


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
    assert {"ports": [{"port": port, "protocol": "TCP"}]} in rules and "ipBlock" not in str(rules)
    # Without credentials, a pod asks the cloud who it is.
    del store["credentialsSecret"]
    assert "169.254.0.0/16" in str(one(render(values), "NetworkPolicy")["spec"]["egress"])


def test_autoscalers_ask_for_the_queue_of_their_own_pool_by_class() -> None:
    metrics = one(render(case("single-node")), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert {each["pods"]["metric"]["name"] for each in metrics} == {"ropeswitch_queued_tokens"}
    assert {
        each["pods"]["metric"]["selector"]["matchLabels"]["length_class"]: each["pods"]["target"]["averageValue"]
        for each in metrics
    } == {"8k": "65536", "2048k": "1048576"}
    [metric] = one(render({"autoscaling": {"hpa": {"enabled": True}}}), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"] == {"name": "ropeswitch_queued_tokens"}
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "262144"}
    queue = 'sum(ropeswitch_queued_tokens{namespace="llm",service="demo-ropeswitch-%s"%s})'
    for end, pool, labels in (("", "short", ""), ("-long", "long", ',length_class="2048k"')):
        [trigger] = one(render(case("everything")), "ScaledObject", f"demo-ropeswitch{end}")["spec"]["triggers"]
        assert trigger["metadata"]["query"] == queue % (pool, labels)
        assert trigger["authenticationRef"] == {"name": "prometheus"} and trigger["metadata"]["authModes"] == "bearer"
    [trigger] = one(render({"autoscaling": {"keda": KEDA}}), "ScaledObject")["spec"]["triggers"]
    assert "authenticationRef" not in trigger and "authModes" not in trigger["metadata"]


@pytest.mark.parametrize(
    ("own", "thresholds"),
    [
        ({"queuedTokensPerReplicaByClass": {"long": 3}}, ["3"]),
        ({"queuedTokensPerReplica": 4}, ["4"]),
        ({"maxReplicas": 9}, ["1", "2"]),
    ],
)
def test_the_long_pools_own_target_replaces_the_first_pools(own: Values, thresholds: list[str]) -> None:
    scaling = {"keda": KEDA, "queuedTokensPerReplicaByClass": {"short": 1, "long": 2}}
    objects = render({"autoscaling": scaling, "longPool": {"enabled": True, "values": {"autoscaling": own}}})
    for name, expected in (("demo-ropeswitch-long", thresholds), ("demo-ropeswitch", ["1", "2"])):
        triggers = one(objects, "ScaledObject", name)["spec"]["triggers"]
        assert sorted(each["metadata"]["threshold"] for each in triggers) == expected
