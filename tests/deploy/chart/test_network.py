"""Who reaches whom: services, routes, autoscalers, scrapes and policies name what is there."""

from typing import Any

import pytest

from ropeswitch.server.front.flags import BODY_BYTES, BODY_BYTES_PER_TOKEN
from tests.deploy.chart.helm import CASES, Object, Values, case, one, render


def labels(objects: list[Object]) -> dict[str, Any]:
    """Labels of the pods of every workload, by name and what they are."""
    found: dict[str, Any] = {}
    for each in objects:
        name, spec = each["metadata"]["name"], each.get("spec", {})
        if each["kind"] == "Deployment":
            found[name, "server"] = spec["template"]["metadata"]["labels"]
        elif each["kind"] == "LeaderWorkerSet":
            found[name, "server"] = spec["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
            found[name, "worker"] = spec["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
        elif each["kind"] == "Job":
            found[name, "loadtest"] = spec["template"]["metadata"]["labels"]
        elif each["kind"] == "Pod":
            found[name, "test"] = each["metadata"]["labels"]
    return found


def selected(objects: list[Object], selector: Values) -> set[tuple[str, str]]:
    return {pod for pod, found in labels(objects).items() if selector.items() <= found.items()}


@pytest.mark.parametrize("name", CASES)
def test_selectors(name: str) -> None:
    objects = render(case(name))
    workloads = {
        each["metadata"]["name"]: each for each in objects if each["kind"] in ("Deployment", "LeaderWorkerSet")
    }
    for each in objects:
        spec, found = each.get("spec", {}), each["metadata"]["name"]
        if each["kind"] == "Deployment":
            assert selected(objects, spec["selector"]["matchLabels"]) == {(found, "server")}
        if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = spec["scaleTargetRef"]
            assert workloads[target["name"]]["apiVersion"] == target["apiVersion"]
            assert workloads[target["name"]]["kind"] == target["kind"]
            # The autoscaler decides how many there are.
            assert "replicas" not in workloads[target["name"]]["spec"]
        if each["kind"] == "PodDisruptionBudget":
            assert {pod for pod, _ in selected(objects, spec["selector"]["matchLabels"])} == {found}


def test_one_pool_one_service() -> None:
    objects = render(case("two-nodes"))
    assert selected(objects, one(objects, "Service")["spec"]["selector"]) == {("demo-ropeswitch", "server")}


def test_two_pools_behind_one_name() -> None:
    objects = render(case("everything"))
    reached = {
        each["metadata"]["name"]: {pod for pod, _ in selected(objects, each["spec"]["selector"])}
        for each in objects
        if each["kind"] == "Service"
    }
    assert reached == {
        "demo-ropeswitch-short": {"demo-ropeswitch"},
        "demo-ropeswitch-long": {"demo-ropeswitch-long"},
        "demo-ropeswitch": {"demo-ropeswitch", "demo-ropeswitch-long"},
    }
    long, rest = one(objects, "HTTPRoute")["spec"]["rules"]
    assert long["matches"] == [{"headers": [{"type": "Exact", "name": "x-ropeswitch-pool", "value": "long"}]}]
    assert long["backendRefs"] == [{"name": "demo-ropeswitch-long", "port": 8000}]
    assert rest["backendRefs"] == [{"name": "demo-ropeswitch-short", "port": 8000}]
    annotations = one(objects, "Ingress", "demo-ropeswitch-long")["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/canary-by-header"] == "x-ropeswitch-pool"
    assert (
        "nginx.ingress.kubernetes.io/canary"
        not in one(objects, "Ingress", "demo-ropeswitch")["metadata"]["annotations"]
    )


def test_the_second_pool_leaves_the_first_where_it_is() -> None:
    """A Deployment's selector cannot change, and a new name would stop the old pods before new ones are up."""
    before = one(render({}), "Deployment")
    after = one(render({"longPool": {"enabled": True}}), "Deployment", "demo-ropeswitch")
    assert before == after


@pytest.mark.parametrize("name", ["single-node", "everything"])
def test_every_server_is_scraped_once(name: str) -> None:
    objects = render({**case(name), "metrics": {"serviceMonitor": {"enabled": True}}})
    selector = one(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    scraped = [
        pod
        for each in objects
        if each["kind"] == "Service" and selector.items() <= each["metadata"]["labels"].items()
        for pod in selected(objects, each["spec"]["selector"])
    ]
    assert sorted(scraped) == sorted(pod for pod in labels(objects) if pod[1] == "server")


class TestScaling:
    def test_by_length_class(self) -> None:
        metrics = one(render(case("single-node")), "HorizontalPodAutoscaler")["spec"]["metrics"]
        targets = {
            each["pods"]["metric"]["selector"]["matchLabels"]["length_class"]: each["pods"]["target"]["averageValue"]
            for each in metrics
        }
        assert targets == {"8k": "65536", "2048k": "1048576"}
        assert {each["pods"]["metric"]["name"] for each in metrics} == {"ropeswitch_queued_tokens"}

    def test_all_classes_together(self) -> None:
        [metric] = one(render({"autoscaling": {"hpa": {"enabled": True}}}), "HorizontalPodAutoscaler")["spec"][
            "metrics"
        ]
        assert metric["pods"]["metric"] == {"name": "ropeswitch_queued_tokens"}
        assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "262144"}

    def test_keda_asks_for_the_pools_own_queue(self) -> None:
        objects = render(case("everything"))
        queries = {
            each["metadata"]["name"]: [trigger["metadata"]["query"] for trigger in each["spec"]["triggers"]]
            for each in objects
            if each["kind"] == "ScaledObject"
        }
        queue = 'sum(ropeswitch_queued_tokens{namespace="llm",service="demo-ropeswitch-%s"%s})'
        assert queries == {
            "demo-ropeswitch": [queue % ("short", "")],
            "demo-ropeswitch-long": [queue % ("long", ',length_class="2048k"')],
        }


@pytest.mark.parametrize("tokens", [0, 1000, 2097152, 4194305])
def test_routes_let_through_what_the_server_takes(tokens: int) -> None:
    ingress = one(render({**case("cpu"), "maxModelLen": tokens}), "Ingress")
    size = ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"]
    taken = max(BODY_BYTES, BODY_BYTES_PER_TOKEN * tokens)
    assert size.endswith("m")
    assert taken <= int(size[:-1]) << 20 < taken + (1 << 20)


def test_routes_wait_for_long_prompts() -> None:
    objects = render({**case("everything"), "requestTimeoutSeconds": 7200})
    for rule in one(objects, "HTTPRoute")["spec"]["rules"]:
        assert rule["timeouts"] == {"request": "7200s", "backendRequest": "7200s"}
    for each in objects:
        if each["kind"] == "Ingress":
            annotations = each["metadata"]["annotations"]
            prefix = "nginx.ingress.kubernetes.io/proxy-"
            assert annotations[prefix + "read-timeout"] == annotations[prefix + "send-timeout"] == "7200"
            assert annotations[prefix + "buffering"] == annotations[prefix + "request-buffering"] == "off"
            assert annotations[prefix + "body-size"] == "128m"


class TestPolicy:
    def test_who_may_come_in(self) -> None:
        ingress = one(render(case("everything")), "NetworkPolicy")["spec"]["ingress"]
        assert ingress[0]["ports"] == [{"port": "http"}]
        gateway, own = ingress[0]["from"]
        assert gateway == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}}}
        objects = render(case("everything"))
        [expression] = own["podSelector"]["matchExpressions"]
        found = {
            pod
            for component in expression["values"]
            for pod in selected(objects, own["podSelector"]["matchLabels"] | {expression["key"]: component})
        }
        clients = {pod for pod in labels(objects) if pod[1] in ("test", "loadtest")}
        assert expression["operator"] == "In" and found == clients and len(clients) == 3
        assert "from" not in one(render({}), "NetworkPolicy")["spec"]["ingress"][0]

    def test_ranks_reach_each_other_on_every_port(self) -> None:
        spec = one(render(case("two-nodes")), "NetworkPolicy")["spec"]
        peers = [{"podSelector": spec["podSelector"]}]
        assert {"from": peers} in spec["ingress"]
        assert {"to": peers} in spec["egress"]
        [expression] = spec["podSelector"]["matchExpressions"]
        assert set(expression["values"]) == {"server", "worker"}

    @pytest.mark.parametrize(("name", "out"), [("minimal", False), ("single-node", False), ("two-nodes", True)])
    def test_only_a_model_from_elsewhere_opens_the_way_out(self, name: str, out: bool) -> None:
        egress = one(render(case(name)), "NetworkPolicy")["spec"]["egress"]
        assert ({"ports": [{"port": 443, "protocol": "TCP"}]} in egress) == out
        # Of the rest every one names its peers, or is for names alone.
        ports = [port["port"] for rule in egress if "to" not in rule for port in rule["ports"]]
        assert sorted(set(ports) - {443}) == [53]
