"""The InferencePool selects the pods that serve, the route leads to it, and what cannot work with a picker is refused."""

from typing import Any

import pytest
from helm_python import HelmError

from tests.deploy.chart.helm import case, notes, one, render
from tests.deploy.chart.kinds import check

PICKER = {"enabled": True, "endpointPicker": {"service": "picker"}}


def test_it_selects_the_pods_that_serve() -> None:
    objects = render(case("inference-pool"))
    pool = one(objects, "InferencePool")
    check(pool, "1.35")
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    service = one(objects, "Service")
    assert pool["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    [container] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert pool["spec"]["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]
    assert pool["spec"]["endpointPickerRef"] == {
        "name": "picker-epp",
        "port": {"number": 9002},
        "failureMode": "FailOpen",
    }


def test_of_a_group_it_selects_the_leader() -> None:
    values = {"parallelism": {"tensor": 16, "nodes": 2, "gpusPerNode": 8}, "inferencePool": PICKER}
    objects = render(values)
    template = one(objects, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    selected = one(objects, "InferencePool")["spec"]["selector"]["matchLabels"]
    leader, worker = (template[name]["metadata"]["labels"] for name in ("leaderTemplate", "workerTemplate"))
    assert selected.items() <= leader.items() and not selected.items() <= worker.items()


def test_objectives_and_the_route_name_it() -> None:
    objects = render(case("inference-pool"))
    name = one(objects, "InferencePool")["metadata"]["name"]
    found = [each for each in objects if each["kind"] == "InferenceObjective"]
    for each in found:
        check(each, "1.35")
        assert each["spec"]["poolRef"] == {"name": name}
    assert {each["metadata"]["name"]: each["spec"]["priority"] for each in found} == {"interactive": 10, "batch": -1}
    route = one(objects, "HTTPRoute")
    check(route, "1.35")
    [rule] = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.service: inferencePool.enabled needs"),
        ({"inferencePool": PICKER, "longPool": {"enabled": True}}, "an InferencePool has one picker for all its pods"),
        (
            {"inferencePool": PICKER, "tls": {"enabled": True, "existingSecret": "a"}},
            "the endpoint picker reads /metrics over plain HTTP without a key",
        ),
        (
            {"inferencePool": PICKER, "metrics": {"key": {"existingSecret": "a"}}},
            "the endpoint picker reads /metrics over plain HTTP without a key",
        ),
        ({"inferencePool": {"objectives": [{"name": "a", "priority": 1}]}}, "objectives without an InferencePool"),
        ({"inferencePool": {"objectives": [{"name": "a"}]}}, "priority"),
        ({"inferencePool": {"endpointPicker": {"failureMode": "Open"}}}, "failureMode"),
        ({"inferencePool": {"picker": "a"}}, "picker"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render(values)


def test_the_user_hears_what_is_missing() -> None:
    printed = notes(case("inference-pool"), apis=())
    for kind, api in (
        ("InferencePool (inferencePool)", "inference.networking.k8s.io/v1"),
        ("InferenceObjective (inferencePool.objectives)", "llm-d.ai/v1alpha2"),
    ):
        assert f"{kind} needs {api}, which this cluster does not have" in printed
    closed = {"inferencePool": PICKER, "networkPolicy": {"from": [{"podSelector": {}}]}}
    assert "it must be in networkPolicy.from" in notes(closed)
    assert "it must be in networkPolicy.from" not in notes({"inferencePool": PICKER})
