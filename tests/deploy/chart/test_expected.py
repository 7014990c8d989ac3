"""What a user's values make: a table, expected.yaml, and the few cases that need a computation."""

from collections import defaultdict
from typing import Any

import pytest

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.serve_flags import Serving, helm_values, serve_flags
from ropeswitch.factors.ladders.choice import parse
from ropeswitch.server.front.flags import BODY_BYTES, BODY_BYTES_PER_TOKEN
from tests.deploy.chart import helm
from tests.deploy.chart.helm import HERE, Values, case, contains, one, pod, render, templates
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B

GROUP = {"parallelism": {"tensor": 16, "nodes": 2, "gpusPerNode": 8}}


def picked(values: Values, name: str, apis: list[str]) -> Any:
    words = name.split()
    if name == "notes":
        return helm.notes(values, apis=apis)
    if name == "container":
        return pod(values)["containers"][0]
    if words[-1] in ("server", "worker", "test", "loadtest"):
        return pod(values, words[-1], "long" if words[0] == "long" else "main")
    return one(render(values), *words)


@pytest.mark.parametrize("each", helm.read(HERE / "expected.yaml"), ids=lambda each: each["lost"])
def test_without_it_a_user_loses(each: dict[str, Any]) -> None:
    values = {**(case(each["case"]) if "case" in each else {}), **each.get("values", {})}
    apis = each.get("apis", list(helm.OPTIONAL_APIS))
    for name, wanted in each.get("has", {}).items():
        assert contains(picked(values, name, apis), wanted), (name, wanted, picked(values, name, apis))
    for lacks in each["lacks"] if isinstance(each.get("lacks"), list) else [each.get("lacks", {})]:
        for name, unwanted in lacks.items():
            assert not contains(picked(values, name, apis), unwanted), (name, unwanted)


PUBLIC = "/v1/chat/completions /v1/messages /v1/rope /tokenize /health/ready /ui /ui/chat".split()
LONG_POOL = "Exact x-ropeswitch-pool: long"
# The kind of a route, its service, and the header that it needs.
ROUTES = {
    "cpu": {("Ingress", "", "")},
    "inference-pool": {("HTTPRoute", "", "")},
    "everything": {
        *(("Ingress", "-short", ""), ("Ingress", "-long", "")),
        *(("HTTPRoute", "-short", ""), ("HTTPRoute", "-long", LONG_POOL)),
    },
}


@pytest.mark.parametrize("name", ROUTES)
def test_the_routes_of_clients_are_public_the_metrics_are_not_and_the_header_chooses_the_pool(name: str) -> None:
    routed = defaultdict(list)
    for each in render(case(name)):
        for rule in each["spec"]["rules"] if each["kind"] in ("Ingress", "HTTPRoute") else ():
            for path in rule.get("http", {}).get("paths", ()):
                assert path["pathType"] == "Prefix"
                routed["Ingress", path["backend"]["service"]["name"], ""].append(path["path"])
            for match in rule.get("matches", ()):
                header = "".join(f"{one['type']} {one['name']}: {one['value']}" for one in match.get("headers", ()))
                routed["HTTPRoute", rule["backendRefs"][0]["name"], header].append(match["path"]["value"])
    assert set(routed) == {(kind, f"demo-ropeswitch{end}", header) for kind, end, header in ROUTES[name]}
    for prefixes in routed.values():
        for path in PUBLIC:
            assert any(f"{path}/".startswith(f"{prefix}/") for prefix in prefixes), path
        for path in ("/metrics", "/metrics/", "/reset_prefix_cache", "/sleep"):
            assert not any(f"{path}/".startswith(f"{prefix.rstrip('/')}/") for prefix in prefixes), path


@pytest.mark.parametrize("tokens", [0, 1000, 2097152, 4194305])
def test_routes_let_through_the_largest_body_that_any_pool_accepts(tokens: int) -> None:
    accepted = max(BODY_BYTES, BODY_BYTES_PER_TOKEN * tokens)
    route = {"ingress": {"enabled": True, "hosts": ["a"]}}
    for values in ({"maxModelLen": tokens}, {"longPool": {"enabled": True, "values": {"maxModelLen": tokens}}}):
        found = one(render(route | values), "Ingress", "demo-ropeswitch")["metadata"]["annotations"]
        size = found["nginx.ingress.kubernetes.io/proxy-body-size"]
        assert size.endswith("m") and accepted <= int(size[:-1]) << 20 < accepted + (1 << 20)


@pytest.mark.parametrize("field", ["factors", "chatTemplate"])
def test_a_changed_file_replaces_the_pods(field: str) -> None:
    before, after = (one(render({field: {"content": text}}), "Deployment")["spec"]["template"] for text in "ab")
    assert before["metadata"] != after["metadata"] and before["spec"] == after["spec"]


def test_a_label_has_room_for_the_names_of_groups() -> None:
    """A LeaderWorkerSet's worker groups are StatefulSets NAME-0, whose pods have a label with a hash after it."""
    values: Values = {"fullnameOverride": "a" * 60, "longPool": {"enabled": True, "values": GROUP}, **GROUP}
    names = [each["metadata"]["name"] for each in render(values) if each["kind"] == "LeaderWorkerSet"]
    assert len(names) == 2 and all(len(f"{name}-99-0123456789") <= 63 for name in names)


@pytest.mark.parametrize(
    ("config", "layout", "length", "dtype"),
    [
        (LLAMA2_7B, Layout(8, 1, 2), 2097152, "auto"),
        (MISTRAL_7B, Layout(16, 2), 2097152, "fp8"),
        (MISTRAL_7B, Layout(1), 65536, "auto"),
    ],
)
def test_a_plans_values_run_the_plans_command(config: dict[str, Any], layout: Layout, length: int, dtype: str) -> None:
    shape = shape_from_config("c", config)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 16, 8, 1), Workload(length, 2, 0.9, 3))
    [chosen] = [candidate for candidate in plan.candidates if candidate.layout == layout]
    serving = Serving("a/model", length, 0.9, dtype, parse("yarn:2x,4x"), 32768, "reserve")
    in_cluster = {"HEAD_ADDRESS": "$(LWS_LEADER_ADDRESS)", "0": "$(LWS_WORKER_INDEX)"}
    words = [in_cluster.get(word, word) for word in serve_flags(serving, chosen)]
    values = helm_values(serving, shape, chosen)
    [container] = pod(values)["containers"]
    assert sorted(container["args"][: len(words)]) == sorted(words)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == chosen.placement.gpus_per_node
    assert any(kind == "worker" for _, kind, _ in templates(render(values))) == (chosen.placement.nodes > 1)
