"""What holds for every object that any values file of the matrix renders, and between objects."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from vllm.config import KVTransferConfig

from ropeswitch.model_patches.switch.kv.connectors import check_connector
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.start import flags
from tests.deploy.chart import helm
from tests.deploy.chart.helm import CASES, Object, Values, case, containers, one, render, templates
from tests.deploy.chart.kinds import check

VERSIONS = ["1.30", *(pytest.param(f"1.{minor}", marks=pytest.mark.full) for minor in range(31, 35)), "1.35"]
# The two halves of a disaggregated pair, whose values the chart ships.
HALVES = {
    role: {"model": "Qwen/Qwen3-8B", **helm.read(helm.CHART / f"values-{role}.yaml")} for role in ("prefill", "decode")
}
ALL: dict[str, Values] = {name: case(name) for name in CASES} | HALVES


@pytest.fixture(params=ALL)
def values(request: pytest.FixtureRequest) -> Values:
    return ALL[request.param]


@pytest.fixture
def objects(values: Values) -> list[Object]:
    return render(values)


def selected(objects: list[Object], selector: Values, expressions: Any = ()) -> set[tuple[str, str]]:
    """Return workload and component of the pods that a label selector selects."""
    return {
        (name, component)
        for name, component, template in templates(objects)
        if selector.items() <= (labels := template["metadata"]["labels"]).items()
        and all(each["operator"] == "In" and labels.get(each["key"]) in each["values"] for each in expressions)
    }


def parsed(spec: Object, rank: str = "0") -> Namespace:
    """Return a server's arguments as its own parser reads them in a cluster."""
    in_cluster = {
        "$(LWS_LEADER_ADDRESS)": "demo-0.demo.llm",
        "$(LWS_WORKER_INDEX)": rank,
        "/etc/ropeswitch/chat-template/chat-template.jinja": str(helm.CHART / "values.yaml"),
    }
    args = [in_cluster.get(arg, arg) for arg in spec["containers"][0]["args"]]
    assert args[0] == "serve" and not any("$(" in arg for arg in args)
    return vllm_adapter.parse(args[1:], flags.add)


def servers(objects: list[Object]) -> Iterator[tuple[str, str, Object]]:
    yield from ((name, kind, each["spec"]) for name, kind, each in templates(objects) if kind in ("server", "worker"))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_and_the_operators_accept_every_object(values: Values, version: str) -> None:
    assert helm.findings(values, f"v{version}.0") == []
    objects = render(values, kubernetes=f"v{version}.0")
    for each in objects:
        check(each, version)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


class _OnceLoader(yaml.SafeLoader):
    """Refuses a duplicate key, as kustomize does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice: {sorted(key for key in keys if keys.count(key) > 1)}"
        return super().construct_mapping(node, deep)


def test_no_key_and_no_variable_is_set_twice(values: Values) -> None:
    own = {"release": "mine", "app.kubernetes.io/component": "mine", "app.kubernetes.io/name": "mine"}
    metrics = {name: {"labels": own} for name in ("serviceMonitor", "prometheusRule", "dashboards")}
    merged = {**values, "commonLabels": own, "podLabels": own, "metrics": {**values.get("metrics", {}), **metrics}}
    for each in (values, merged):
        for path, text in helm.files(each).items():
            if path.endswith(".yaml"):
                list(yaml.load_all(text, _OnceLoader))
    for _, _, template in templates(render(values)):
        for container in containers(template["spec"]):
            names = [each["name"] for each in container.get("env", [])]
            assert len(names) == len(set(names))


def test_every_container_is_confined_and_limited(objects: list[Object]) -> None:
    for name, component, template in templates(objects):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in spec["volumes"])
        for container in containers(spec):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False and security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            if container["name"] not in ("beside", "before"):  # the user's own
                assert container["resources"]["limits"]["memory"], (component, container["name"])


def test_every_mount_has_a_volume_whose_source_exists(values: Values, objects: list[Object]) -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for _, _, template in templates(objects):
        spec = template["spec"]
        mounts = [mount for container in containers(spec) for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths)) and "/tmp" in paths
        for volume in spec["volumes"]:
            claim, config = volume.get("persistentVolumeClaim"), volume.get("configMap")
            kind = "PersistentVolumeClaim" if claim else "ConfigMap"
            if name := (claim or {}).get("claimName") or (config or {}).get("name"):
                assert (kind, name) in made or repr(name) in repr(values), name


def test_secrets_are_mounted_or_referenced_and_never_in_arguments(values: Values, objects: list[Object]) -> None:
    def secrets(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (node[key] for key in ("existingSecret", "tokenSecret", "credentialsSecret") if node.get(key))
            yield from (found for each in node.values() for found in secrets(each))

    for secret in {*secrets(values)}:
        used = False
        for _, component, template in templates(objects):
            for container in containers(template["spec"]):
                plain = [each["value"] for each in container.get("env", []) if "value" in each]
                assert not any(secret == word for word in [*container.get("args", []), *plain])
                used |= f"'name': '{secret}'" in repr(container)
            mounted = [each for each in template["spec"]["volumes"] if "secret" in each]
            used |= any(each["secret"]["secretName"] == secret for each in mounted)
            # Only the pods that answer requests, or send them, hold keys; group-readable, as the user is not root.
            assert component != "worker" or not mounted
            assert all(each["secret"]["defaultMode"] == 0o440 for each in mounted)
        assert used, secret


def test_the_servers_parser_accepts_every_pods_arguments(values: Values, objects: list[Object]) -> None:
    extra = values.get("server", {}).get("extraArgs", [])
    for name, component, spec in servers(objects):
        args = spec["containers"][0]["args"]
        found = parsed(spec, "1" if component == "worker" else "0")
        assert found.headless is (component == "worker")
        own = {**values, **(values["longPool"]["values"] if name.endswith("-long") else {})}
        length, gpus = own.get("maxModelLen", 0), own.get("parallelism", {}).get("gpusPerNode", 0)
        assert found.max_model_len == (length or None)
        assert args[len(args) - len(extra) :] == extra and all(args.count(word) == extra.count(word) for word in extra)
        limits = spec["containers"][0]["resources"]["limits"]
        assert limits.get("nvidia.com/gpu", 0) == gpus
        assert not gpus or gpus * found.nnodes == found.tensor_parallel_size * found.pipeline_parallel_size


def test_ports_agree_from_the_route_to_the_process(objects: list[Object]) -> None:
    ports = {each["metadata"]["name"]: each["spec"]["ports"] for each in objects if each["kind"] == "Service"}
    for _, component, spec in servers(objects):
        container = spec["containers"][0]
        probes = ("startupProbe", "livenessProbe", "readinessProbe")
        if component == "worker":
            assert not {"ports", *probes} & set(container)
            continue
        [port] = container["ports"]
        found = parsed(spec)
        assert found.port == port["containerPort"]
        scheme = "HTTPS" if found.ssl_certfile else None
        for probe in probes:
            path = "/health/live" if probe == "livenessProbe" else "/health/ready"
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]} | (
                {"scheme": scheme} if scheme else {}
            )
        # A pod leaves its services, then finishes its requests, then ends.
        stopped = container["lifecycle"]["preStop"]["sleep"]["seconds"] + found.shutdown_timeout + 30
        assert stopped < spec["terminationGracePeriodSeconds"]
    for [each] in ports.values():
        assert each["targetPort"] == each["name"] == port["name"]
    for each in objects:
        if each["kind"] == "Ingress":
            for rule in each["spec"]["rules"]:
                for path in rule["http"]["paths"]:
                    service = path["backend"]["service"]
                    assert service["port"]["name"] in [port["name"] for port in ports[service["name"]]]
        if each["kind"] == "HTTPRoute":
            backends = [backend for rule in each["spec"]["rules"] for backend in rule["backendRefs"]]
            pools = [backend for backend in backends if backend.get("kind") == "InferencePool"]
            assert all(backend["name"] == one(objects, "InferencePool")["metadata"]["name"] for backend in pools)
            assert all(ports[each["name"]][0]["port"] == each["port"] for each in backends if each not in pools)
        if each["kind"] == "InferencePool":
            assert each["spec"]["targetPorts"] == [{"number": port["containerPort"]}]
        if each["kind"] == "NetworkPolicy":
            assert each["spec"]["ingress"][0]["ports"] == [{"port": port["name"]}]


def test_selectors_select_the_pods_they_name(objects: list[Object]) -> None:
    workloads = {
        each["metadata"]["name"]: each for each in objects if each["kind"] in ("Deployment", "LeaderWorkerSet")
    }
    serving = {(name, component) for name, component, _ in templates(objects) if component == "server"}
    reached: set[tuple[str, str]] = set()
    for each in objects:
        spec, name = each.get("spec", {}), each["metadata"]["name"]
        if each["kind"] == "Deployment":
            assert selected(objects, spec["selector"]["matchLabels"]) == {(name, "server")}
        elif each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = spec["scaleTargetRef"]
            assert {key: workloads[target["name"]][key] for key in ("apiVersion", "kind")}.items() <= target.items()
            # The autoscaler decides how many replicas there are.
            assert "replicas" not in workloads[target["name"]]["spec"]
        elif each["kind"] == "PodDisruptionBudget":
            assert {workload for workload, _ in selected(objects, spec["selector"]["matchLabels"])} == {name}
        elif each["kind"] == "Service":
            found = selected(objects, spec["selector"])
            assert found and found <= serving
            reached |= found
        elif each["kind"] == "InferencePool":
            assert selected(objects, spec["selector"]["matchLabels"]) == serving
            assert spec["selector"]["matchLabels"] == one(objects, "Service")["spec"]["selector"]
        elif each["kind"] == "InferenceObjective":
            assert spec["poolRef"]["name"] == one(objects, "InferencePool")["metadata"]["name"]
        elif each["kind"] == "NetworkPolicy":
            group = {(workload, component) for workload, component, _ in servers(objects)}
            selector = spec["podSelector"]
            assert selected(objects, selector["matchLabels"], selector["matchExpressions"]) == group
            # The ranks of a group reach each other on every port.
            assert {"from": [{"podSelector": selector}]} in spec["ingress"]
            assert {"to": [{"podSelector": selector}]} in spec["egress"]
    assert reached == serving
    for name, component, each in servers(objects):
        for spread in each.get("topologySpreadConstraints", []):
            assert selected(objects, spread["labelSelector"]["matchLabels"]) == {(name, component)}


def test_prometheus_scrapes_every_server_once(values: Values) -> None:
    metrics = {**values.get("metrics", {}), "serviceMonitor": {"enabled": True}}
    objects = render({**values, "metrics": metrics})
    monitor = one(objects, "ServiceMonitor")["spec"]
    services = [each for each in objects if each["kind"] == "Service"]
    scraped = [
        found
        for each in services
        if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        for found in selected(objects, each["spec"]["selector"])
    ]
    assert sorted(scraped) == sorted((name, kind) for name, kind, _ in templates(objects) if kind == "server")
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in [port["name"] for each in services for port in each["spec"]["ports"]]
    spec = next(spec for _, kind, spec in servers(objects) if kind == "server")
    assert endpoint.get("scheme", "http") == ("https" if parsed(spec).ssl_certfile else "http")
    if "--metrics-key-file" in (args := spec["containers"][0]["args"]):
        [volume] = [each for each in spec["volumes"] if each["name"] == "metrics-key"]
        credentials = endpoint["authorization"]["credentials"]
        assert credentials["name"] == volume["secret"]["secretName"]
        assert args[args.index("--metrics-key-file") + 1].endswith(f"/{credentials['key']}")
    else:
        assert "authorization" not in endpoint


def test_pods_run_where_the_user_wants_and_carry_the_users_labels(values: Values, objects: list[Object]) -> None:
    for _, component, template in templates(objects):
        # A load test's client need not be on a server's node.
        wanted = values.get("loadTest", {}) if component == "loadtest" else values
        for key in "nodeSelector tolerations affinity priorityClassName schedulerName runtimeClassName".split():
            if component != "test" or key in ("nodeSelector", "tolerations"):
                assert template["spec"].get(key) == wanted.get(key), key
        assert template["spec"].get("imagePullSecrets") == values.get("imagePullSecrets")
        if component in ("server", "worker"):
            assert values.get("podLabels", {}).items() <= template["metadata"]["labels"].items()
    for each in render({**values, "extraObjects": [], "commonLabels": {"team": "llm"}}):
        assert each["metadata"]["labels"]["team"] == "llm", each["metadata"]["name"]


@pytest.mark.parametrize("role", HALVES)
def test_each_half_of_a_disaggregated_pair_reaches_the_other(role: str) -> None:
    objects = render(HALVES[role])
    [(_, _, template)] = [each for each in templates(objects) if each[1] == "server"]
    config = parsed(template["spec"]).kv_transfer_config
    assert isinstance(config, KVTransferConfig) and config.kv_load_failure_policy == "recompute"
    assert config.kv_role == {"prefill": "kv_producer", "decode": "kv_consumer"}[role]
    check_connector(config)
    variables = {each["name"]: each for each in template["spec"]["containers"][0]["env"]}
    address = variables["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]
    assert address == {"fieldRef": {"fieldPath": "status.podIP"}} and "VLLM_NIXL_SIDE_CHANNEL_PORT" in variables
    # The other half is a release of its own.
    [other] = [each for each in HALVES if each != role]
    [(_, _, pod)] = [each for each in templates(render(HALVES[other], release="another")) if each[1] == "server"]
    policy = one(objects, "NetworkPolicy")["spec"]
    for rules, field in ((policy["ingress"], "from"), (policy["egress"], "to")):
        peers = [peer["podSelector"]["matchLabels"] for rule in rules if "ports" not in rule for peer in rule[field]]
        assert any(selector.items() <= pod["metadata"]["labels"].items() for selector in peers)
