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
from tests.deploy.chart.helm import CASES, CHART, Values, case, chart, files, findings, notes, pod, read, render
from tests.deploy.chart.kinds import check

Path = tuple[str, ...]
SCHEMA = read(CHART / "values.schema.json")
DEFAULTS = read(CHART / "values.yaml")
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


def at(path: Path, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


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
                chart().validate_schema(at((*path, "unknownKey"), 1))
        elif path[-1] not in OPEN:
            with pytest.raises(HelmValuesError):
                chart().validate_schema(at(path, {"a": {"list of": ["maps"]}}))


# Values that no rule below makes.
OTHERS: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}}, "imagePullSecrets": [{"name": "a"}], "tolerations": [{"operator": "Exists"}],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}], "resources": {"claims": []},
    "loadTest.resources.limits": {"memory": "9Gi"}, "loadTest.resources.requests": {"memory": "1Gi"}, "modelSource.objectStore.resources": {"limits": {"memory": "9Gi"}},
    "loadTest.affinity": {"nodeAffinity": {}}, "loadTest.tolerations": [{"operator": "Exists"}],
    "longPool.values": {"maxModelLen": 7}, "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "b"}],
    "topologySpread": [], "podSecurityContext": {"runAsUser": 7}, "securityContext": {"privileged": False},
    "networkPolicy.from": [{"podSelector": {}}], "networkPolicy.extraIngress": [{"ports": [{"port": 7}]}],
    "networkPolicy.extraEgress": [{"ports": [{"port": 7}]}], "gateway.parentRefs": [{"name": "a"}],
    "ingress.tls": [{"secretName": "a"}], "inferencePool.objectives": [{"name": "a", "priority": 1}],
    "server.extraEnv": [{"name": "A", "value": "a"}], "server.extraEnvFrom": [{"configMapRef": {"name": "a"}}],
    "server.extraVolumes": [{"name": "a", "emptyDir": {}}], "server.extraArgs": ["--log-prompts", "--verbose"],
    "server.extraVolumeMounts": [{"name": "tmp", "mountPath": "/a"}], "server.extraContainers": [{"name": "a", "image": "b"}],
    "server.extraInitContainers": [{"name": "a", "image": "b"}], "loadTest.workloads": ["soak"],
    "loadTest.argumentsByWorkload": {"chat": ["--seed=7"]}, "autoscaling.queuedTokensPerReplicaByClass": {"a": 7},
    "publicPaths": ["/v1"], "updateStrategy.maxUnavailable": 1, "image.digest": "sha256:" + "7" * 64, "ladder": "ntk",
    "modelSource.objectStore.uri": "s3://a/b", "fullnameOverride": "other", "autoscaling.keda.authModes": "basic",
    "metrics.serviceMonitor.interval": "77s", "loadTest.url": "http://a", "loadTest.baseline": "http://a",
    "autoscaling.keda.serverAddress": "http://a", "modelSource.objectStore.endpoint": "https://a",
    "server.shutdownTimeout": 7, "gpuMemoryUtilization": 0.5, "autoscaling.minReplicas": 2,
    "metrics.prometheusRule.runbookUrl": "https://a", "modelSource.cache.accessMode": "ReadWriteOnce",
}  # fmt: skip
# Effects that no case of the matrix shows by itself.
CONTEXTS: dict[str, Values] = {
    "gpusFromClaims": {"parallelism": {"gpusPerNode": 1}, "resources": {"claims": [{"name": "a"}]},
                       "resourceClaims": [{"name": "a", "resourceClaimName": "b"}]},
    "serviceAccount.name": {}, "parallelism.tensor": {}, "parallelism.nodes": {"parallelism": {"tensor": 2, "gpusPerNode": 1}},
    "parallelism.gpusPerNode": {}, "parallelism.pipeline": {}, "inferencePool.enabled": {"inferencePool": {"endpointPicker": {"service": "a"}}},
    "apiKeys.enabled": {"apiKeys": {"existingSecret": "a"}}, "tls.enabled": {"tls": {"existingSecret": "a"}},
    "parallelism.decodeContext": {"parallelism": {"tensor": 2, "gpusPerNode": 2}},
    "modelSource.type": {"model": "a", "modelSource": {"objectStore": {"uri": "s3://a/b"}}},
    "autoscaling.hpa.enabled": {}, "autoscaling.keda.enabled": {"autoscaling": {"keda": {"serverAddress": "http://a"}}},
    "metrics.dashboards.folder": {"metrics": {"dashboards": {"enabled": True}}},
    "modelSource.cache.accessMode": {"model": "a/b", "modelSource": {"cache": {"create": True}},
                                     "updateStrategy": {"maxSurge": 0, "maxUnavailable": 1}},
}  # fmt: skip


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
    return {"quantity": "7Gi", "duration": "7s"}.get(str(node).partition("pattern")[2] and _kind(node), "other")


def _kind(node: Mapping[str, Any]) -> str:
    names = ("quantity", "duration")
    return next((name for name in names if SCHEMA["definitions"][name]["pattern"] == node.get("pattern")), "")


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
        assert place[1] not in pod(at(place, None)).get(place[0], {})
    else:
        assert render(at(place, None)) == render({})


@pytest.mark.parametrize(
    "place",
    ["resources.limits", "affinity.nodeAffinity", "loadTest.argumentsByWorkload.chat", "longPool.values.server.extraEnv"],
)
def test_null_is_absent_below_the_second_level(place: str) -> None:
    pools = {"longPool": {"enabled": True, "values": {}}}
    assert render(merged(pools, tuple(place.split(".")), None)) == render(pools)


@pytest.mark.parametrize("place", [*places()], ids=".".join)
def test_any_scalar_renders_valid_objects_or_is_refused(place: Path) -> None:
    for odd in SCALARS:
        try:
            chart().validate_schema(at(place, odd))
            objects = render(at(place, odd))
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


@pytest.mark.parametrize("odd", ["123", "1e5", "true"])
def test_names_that_look_like_numbers_stay_text(odd: str) -> None:
    values: Values = {
        "model": "m", "priorityClassName": odd, "factors": {"existingConfigMap": odd},
        "modelSource": {"type": "pvc", "pvc": {"claimName": odd}}, "apiKeys": {"enabled": True, "existingSecret": odd},
        "tls": {"enabled": True, "existingSecret": odd}, "serviceAccount": {"create": False, "name": odd},
        "metrics": {"key": {"existingSecret": odd}, "serviceMonitor": {"enabled": True}},
        "ingress": {"enabled": True, "hosts": ["a.example.com"]},
        "longPool": {"enabled": True, "header": {"name": "x-pool", "value": odd}},
    }  # fmt: skip
    objects = render(values)
    for each in objects:
        check(each, "1.31")
    assert f"'{odd}'" in str(pod(values)["volumes"]) and pod(values)["priorityClassName"] == odd
    [value] = [
        each["metadata"]["annotations"]["nginx.ingress.kubernetes.io/canary-by-header-value"]
        for each in objects
        if each["kind"] == "Ingress" and each["metadata"]["name"].endswith("-long")
    ]
    assert value == odd


# Kubernetes' own objects, with a part that must be text, and parts that have another type.
TEXTS = """
tolerations: [{key: gpu, value: X}]
server: {extraEnv: [{name: A, value: X}]}
server: {extraEnvFrom: [{configMapRef: {name: X}}]}
server: {extraVolumes: [{name: a, configMap: {name: X}}]}
server: {extraVolumeMounts: [{name: a, mountPath: X}]}
server: {extraContainers: [{name: a, image: a, env: [{name: A, value: X}]}]}
server: {extraInitContainers: [{name: a, image: a, args: [X]}]}
server: {extraArgs: [X]}
affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, labelSelector: {matchLabels: {a: X}}}]}}
networkPolicy: {from: [{podSelector: {matchLabels: {a: X}}}]}
podLabels: {a: X}
podAnnotations: {a: X}
nodeSelector: {a: X}
podSecurityContext: {seLinuxOptions: {level: X}}
"""
WRONG = """
gateway: {enabled: true, parentRefs: [{name: a, port: "443"}]}
server: {extraContainers: [{name: a, image: b, livenessProbe: {grpc: {port: "80"}}}]}
server: {extraContainers: [{name: a, image: b, command: sh}]}
server: {extraContainers: [{name: a, image: b, args: {a: b}}]}
server: {extraContainers: [{name: a, image: [b]}]}
server: {extraVolumes: [{name: a, configMap: x}]}
networkPolicy: {from: [{ipBlock: 10.0.0.0/8}]}
networkPolicy: {extraEgress: [{ports: {port: 443}}]}
ingress: {tls: [{hosts: a.b}]}
podSecurityContext: {sysctls: {a: b}}
resources: {limits: {memory: 64GB}}
resources: {limits: {cpu: -1}}
extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: 1}}]
ladderPolicy: longest
nativeWindow: -1
nativeWindow: 32k
publicPaths: []
publicPaths: [v1]
inferencePool: {objectives: [{name: a}]}
inferencePool: {endpointPicker: {failureMode: Open}}
loadTest: {workloads: [Chat]}
loadTest: {workloads: [chat, chat]}
loadTest: {workloads: [a/b.yaml]}
loadTest: {files: {a b: ""}}
loadTest: {url: "server:8000"}
loadTest: {baseline: "http://"}
loadTest: {run: 0}
loadTest: {results: {accessMode: ReadOnlyMany}}
"""
RIGHT = """
server: {extraContainers: [{name: a, image: b, lifecycle: {preStop: {sleep: {seconds: 5}}}}]}
server: {extraContainers: [{name: a, image: b, livenessProbe: {grpc: {port: 80}}}]}
resources: {limits: {cpu: 500m, memory: 64Gi}, requests: {cpu: 1.5}}
"""


@pytest.mark.parametrize("text", TEXTS.strip().splitlines())
def test_numbers_are_refused_where_kubernetes_wants_text(text: str) -> None:
    for odd in ("true", "0", "1.5", "1000000000000"):
        with pytest.raises(HelmValuesError):
            chart().validate_schema(yaml.safe_load(text.replace("X", odd)))
        chart().validate_schema(yaml.safe_load(text.replace("X", f"'{odd}'")))


@pytest.mark.parametrize("text", WRONG.strip().splitlines())
def test_what_kubernetes_or_the_server_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(HelmValuesError, match=text.partition(":")[0]):
        chart().validate_schema(yaml.safe_load(text))


@pytest.mark.parametrize("text", RIGHT.strip().splitlines())
def test_what_kubernetes_accepts_is_accepted(text: str) -> None:
    assert findings(yaml.safe_load(text)) == []


def test_the_schema_accepts_exactly_the_ladders_that_the_server_does() -> None:
    rules = [each.name for each in RULES]
    for text in ("auto", "none", "yarn:64k,128k", "yarn:65536", "yarn:2x,4.5x", "ntk:1M", *rules):
        parse(text)
        chart().validate_schema({"ladder": text})
    for text in ("yarm", "yarn:", "yarn:64k,", "yarn:,64k", "yarn:x", "yarn:64q", "auto:2x", "none:64k", "file:", " yarn"):
        with pytest.raises(FactorError):
            parse(text)
        with pytest.raises(HelmValuesError, match="ladder"):
            chart().validate_schema({"ladder": text})
    for policy in POLICIES:
        chart().validate_schema({"ladderPolicy": policy})


def test_templates_fall_back_to_the_values_files_defaults() -> None:
    """Under ``--reuse-values``, Helm leaves out new defaults; templates have their own copy: values.yaml as sorted YAML."""
    assert (CHART / "files" / "defaults.yaml").read_text(encoding="utf-8") == yaml.safe_dump(DEFAULTS)


def test_notes_warn_of_what_the_cluster_lacks_and_of_what_is_open() -> None:
    everything = case("everything")
    shown = notes(everything, apis=["keda.sh/v1alpha1"])
    for line in (
        "LeaderWorkerSet (several nodes) needs leaderworkerset", "HTTPRoute (gateway) needs gateway.networking.k8s.io/v1",
        "ServiceMonitor (metrics.serviceMonitor) needs monitoring.coreos.com/v1", "Prometheus must be among them",
        "it must allow 128 MiB", "Warning: the 2 load tests run at the same time",
    ):  # fmt: skip
        assert line in shown
    assert "ScaledObject" not in shown and "needs" not in notes(everything)
    pool = case("inference-pool")
    shown = notes({**pool, "networkPolicy": {"from": [{"podSelector": {}}]}}, apis=[])
    assert "InferencePool (inferencePool) needs" in shown and "InferenceObjective (inferencePool.objectives) needs" in shown
    assert "it must be in networkPolicy.from" in shown and "it must be in networkPolicy.from" not in notes(pool)
    keys = {"apiKeys": {"enabled": True, "existingSecret": "a"}, "service": {"type": "LoadBalancer"}}
    assert "makes /metrics public" in notes(keys) and "anyone who can reach" not in notes(keys)
    assert "makes /metrics public" not in notes({**keys, "metrics": {"key": {"existingSecret": "a"}}})
    assert "anyone who can reach the service can use it" in notes({})
    assert "List the sets:\n\n  curl http://127.0.0.1:8000/v1/rope\n" in notes({})
    assert "List the sets of the ladder yarn:64k,128k" in notes(case("ladder"))
