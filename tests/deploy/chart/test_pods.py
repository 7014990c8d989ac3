"""What single values make of the pods: memory, GPUs, the model, files, environment, groups, and a plan's command."""

import math
from typing import Any

import pytest

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.serve_flags import Serving, helm_values, serve_flags
from ropeswitch.factors.ladders.choice import parse
from tests.deploy.chart.helm import Object, Values, case, one, pod, render, templates, value_after
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B

GIB = 1 << 30
CLAIMS = {
    "parallelism": {"tensor": 8, "gpusPerNode": 8},
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "eight-gpus"}],
    "resources": {"claims": [{"name": "gpu"}], "limits": {"memory": "1Gi"}},
    "gpusFromClaims": True,
}
LADDER = {"ladder": "yarn:4x", "nativeWindow": 32768, "ladderPolicy": "reserve", "ladderAliases": True}
GROUP = {"parallelism": {"tensor": 16, "nodes": 2, "gpusPerNode": 8}}


def args(spec: Object) -> list[str]:
    found: list[str] = spec["containers"][0]["args"]
    return found


def resources(values: Values) -> Any:
    return pod(values)["containers"][0]["resources"]


def volumes(spec: Object) -> dict[str, Any]:
    return {each["name"]: each for each in spec["volumes"]}


def environment(spec: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in spec["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("values", "limit", "request_"),
    [
        ({}, 8 * GIB, 2 * GIB),
        ({"parallelism": {"tensor": 2}}, 12 * GIB, 4 * GIB),
        ({"model": "a/b"}, 64 * GIB, 2 * GIB),
        ({"parallelism": {"gpusPerNode": 1}}, 24 * GIB, 2 * GIB),
        # 8 GPUs of one node; pinned IDs of 1,024 sequences: 8 bytes x 1,048,576 x 1,024 = 8 GiB for each.
        ({**GROUP, "maxModelLen": 1048576}, (16 + 8 * 16) * GIB, 16 * GIB),
        ({**GROUP, "maxModelLen": 1048576, "maxNumSeqs": 128}, (16 + 8 * 9) * GIB, 16 * GIB),
    ],
)
def test_a_server_without_a_memory_limit_gets_one_and_requests_less(values: Values, limit: int, request_: int) -> None:
    found = resources(values)
    assert found["limits"]["memory"] == f"{limit >> 20}Mi" and found["requests"] == {"memory": f"{request_ >> 20}Mi"}


@pytest.mark.parametrize("memory", ["200Gi", "300G", "1Ti", 10**11, "200000000Ki", "900000M"])
def test_a_memory_limit_is_never_below_the_users_request(memory: Any) -> None:
    assert resources({"resources": {"requests": {"memory": memory}}})["limits"] == {"memory": memory}
    less = resources({"resources": {"requests": {"memory": "1000M"}}})
    assert less == {"requests": {"memory": "1000M"}, "limits": {"memory": "8192Mi"}}


def test_gpus_come_from_the_parallelism_the_users_slices_or_claims() -> None:
    gpu = {"parallelism": {"gpusPerNode": 1}}
    assert resources({**gpu, "resources": {"limits": {"memory": "1Gi"}}}) == {
        "limits": {"memory": "1Gi", "nvidia.com/gpu": 1}
    }
    part = {"nvidia.com/mig-3g.40gb": 1, "memory": "1Gi"}
    assert resources({**gpu, "resources": {"limits": part}}) == {"limits": part}
    assert pod(CLAIMS)["resourceClaims"] == CLAIMS["resourceClaims"] and resources(CLAIMS) == CLAIMS["resources"]
    assert resources({**CLAIMS, "gpusFromClaims": False})["limits"] == {"memory": "1Gi", "nvidia.com/gpu": 8}


@pytest.mark.parametrize(
    ("parallelism", "shared"),
    [
        # vLLM's engine on a CPU needs 160 MiB of it for one rank, too; a container has 64.
        ({}, True),
        ({"gpusPerNode": 1}, False),
        ({"tensor": 2, "gpusPerNode": 2}, True),
        ({"pipeline": 2, "gpusPerNode": 2}, True),
        ({"tensor": 2}, True),
    ],
)
def test_ranks_that_communicate_share_enough_memory(parallelism: Values, shared: bool) -> None:
    spec = pod({"parallelism": parallelism, "shm": {"sizeLimit": "3Gi"}})
    assert volumes(spec).get("shm", {}).get("emptyDir") == (
        {"medium": "Memory", "sizeLimit": "3Gi"} if shared else None
    )
    assert ({"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]) == shared


def test_the_image_fits_the_hardware() -> None:
    digest = "sha256:" + "1" * 64
    for values, image in (
        ({}, ":0.1.0-cpu"),
        ({"parallelism": {"gpusPerNode": 1}}, ":0.1.0"),
        ({"image": {"tag": "mine"}}, ":mine"),
        ({"image": {"tag": "mine", "digest": digest}}, f"@{digest}"),
    ):
        assert pod(values)["containers"][0]["image"] == f"ghcr.io/ropeswitch/ropeswitch{image}"


@pytest.mark.parametrize("seconds", [3600, 3601, 5])
def test_a_start_may_take_as_long_as_the_user_says(seconds: int) -> None:
    objects = render({"probes": {"startup": {"seconds": seconds}}})
    startup = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert startup["failureThreshold"] == math.ceil(seconds / startup["periodSeconds"])
    assert one(objects, "Deployment")["spec"]["progressDeadlineSeconds"] > seconds


def test_a_stalled_server_leaves_before_it_is_restarted_and_is_killed_soon() -> None:
    """A stall is 60 s without a step or more; live reports it after five times that."""
    container = pod({"terminationGracePeriodSeconds": 2520})["containers"][0]
    ready, live = container["readinessProbe"], container["livenessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < live["periodSeconds"] * live["failureThreshold"] <= 300
    assert 15 < live["terminationGracePeriodSeconds"] <= 60


def test_several_api_servers_count_in_an_empty_folder() -> None:
    spec = pod({"server": {"apiServers": 2}})
    [container] = spec["containers"]
    folder = environment(spec)["PROMETHEUS_MULTIPROC_DIR"]
    assert {"name": "prometheus", "mountPath": folder} in container["volumeMounts"]
    assert "emptyDir" in volumes(spec)["prometheus"]
    assert container["command"][:2] == ["sh", "-c"]
    assert 'rm -rf "${PROMETHEUS_MULTIPROC_DIR:?}"/*' in container["command"][2]
    assert pod({})["containers"][0]["command"] == ["ropeswitch"] and "prometheus" not in volumes(pod({}))


class TestModel:
    def test_the_bundled_one_needs_no_hub(self) -> None:
        assert args(pod({}))[:2] == ["serve", "--enforce-eager"] and environment(pod({}))["HF_HUB_OFFLINE"] == "1"

    def test_one_from_the_hub_is_cached_on_the_claim(self) -> None:
        spec = pod({"model": "a/b", "modelSource": {"hub": {"tokenSecret": "hub"}, "cache": {"existingClaim": "c"}}})
        env = environment(spec)
        assert args(spec)[:2] == ["serve", "a/b"] and "HF_HUB_OFFLINE" not in env
        assert env["HF_TOKEN"]["secretKeyRef"] == {"name": "hub", "key": "token"}
        assert {"name": "model", "mountPath": env["HF_HOME"]} in spec["containers"][0]["volumeMounts"]
        assert volumes(spec)["model"]["persistentVolumeClaim"] == {"claimName": "c"}
        cached = pod({"model": "a/b", "modelSource": {"cache": {"size": "9Gi"}}})
        assert volumes(cached)["model"] == {"name": "model", "emptyDir": {"sizeLimit": "9Gi"}}

    def test_claims_of_the_chart_outlive_the_release(self) -> None:
        for name in ("two-nodes", "everything"):
            claim = one(render(case(name)), "PersistentVolumeClaim")
            assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
            assert claim["spec"]["storageClassName"] == "shared"

    @pytest.mark.parametrize(("model", "name"), [("/models/llama", "llama"), ("./llama", "llama"), ("a/b", "a/b")])
    def test_one_on_a_claim_is_served_by_the_name_of_the_plan(self, model: str, name: str) -> None:
        source = {"type": "pvc", "pvc": {"claimName": "models", "subPath": "x"}}
        spec = pod({"model": model, "modelSource": source})
        assert args(spec)[:4] == ["serve", "/model", "--served-model-name", name]
        [mount] = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "model"]
        assert mount == {"name": "model", "mountPath": "/model", "readOnly": True, "subPath": "x"}
        assert volumes(spec)["model"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        assert args(pod({"model": model, "modelSource": source, "servedModelName": "mine"}))[3] == "mine"

    @pytest.mark.parametrize(
        ("uri", "remote"),
        [
            ("s3://bucket/a/b", ":s3,env_auth=true:bucket/a/b"),
            ("gs://bucket/a", ":gcs,env_auth=true:bucket/a"),
            ("az://container/a", ":azureblob,env_auth=true:container/a"),
        ],
    )
    def test_one_from_an_object_store_is_served_from_where_it_was_copied(self, uri: str, remote: str) -> None:
        endpoint = "https://e.com" if uri.startswith("s3://") else ""
        store = {"uri": uri, "credentialsSecret": "s", "endpoint": endpoint}
        spec = pod({"model": "m", "modelSource": {"type": "objectStore", "objectStore": store}})
        [download] = spec["initContainers"]
        assert download["args"][:2] == ["copy", remote] and download["envFrom"] == [{"secretRef": {"name": "s"}}]
        env = {each["name"]: each.get("value", each.get("valueFrom")) for each in download["env"]}
        assert env.get("RCLONE_S3_ENDPOINT", "") == endpoint
        [mount] = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "model"]
        assert download["args"][2] == f"/models/{mount['subPath']}" and mount["mountPath"] == args(spec)[1] == "/model"
        # Pods that start at once write separate files; rclone takes at most 16 characters.
        assert env["POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}} and download["command"][-1] == "rclone"
        assert '--partial-suffix ".$(printf %.8s "$POD_UID").part"' in download["command"][2]


@pytest.mark.parametrize(
    ("field", "flag", "name"),
    [("factors", "--factors", "factors"), ("chatTemplate", "--chat-template", "chat-template")],
)
@pytest.mark.parametrize("content", ["{}", '  {\n "sets": []\n}', "\t{}", '{"name": "\u00e9 # \'"}\n'])
def test_a_file_arrives_as_it_is_and_a_change_replaces_the_pods(field: str, flag: str, name: str, content: str) -> None:
    objects = render({field: {"content": content}})
    [volume] = [each for each in pod({field: {"content": content}})["volumes"] if each["name"] == name]
    [item] = volume["configMap"]["items"]
    assert one(objects, "ConfigMap", volume["configMap"]["name"])["data"] == {item["key"]: content}
    assert value_after(pod({field: {"content": content}}), flag) == f"/etc/ropeswitch/{name}/{item['path']}"
    before, after = (
        one(render({field: {"content": text}}), "Deployment")["spec"]["template"] for text in (content, f"{content} ")
    )
    assert before["metadata"] != after["metadata"] and before["spec"] == after["spec"]
    mine = volumes(pod({field: {"existingConfigMap": "mine", "key": "f"}}))[name]["configMap"]
    assert mine == {"name": "mine", "items": [{"key": "f", "path": item["path"]}]}


def test_the_users_containers_and_variables_come_with_the_charts() -> None:
    for component, pool in (("server", "main"), ("server", "long"), ("worker", "long")):
        spec = pod(case("everything"), component, pool)
        assert [each["name"] for each in spec["containers"]] == ["ropeswitch", "beside"]
        assert [each["name"] for each in spec["initContainers"]] == ["model", "before"]
        env = environment(spec)
        assert (env["USER"], env["LOG_LEVEL"], env["HF_HUB_OFFLINE"]) == ("someone", "info", "1")
        assert spec["containers"][0]["envFrom"] == [{"configMapRef": {"name": "more"}}]


def test_every_rank_and_pool_has_the_ladder_and_only_servers_the_names_of_its_sets() -> None:
    flags = ("--ladder", "--native-window", "--ladder-policy")
    for component in ("server", "worker"):
        spec = pod({"model": "a/b", **GROUP, **LADDER, "chatTemplate": {"content": "a"}}, component)
        assert [value_after(spec, flag) for flag in flags] == ["yarn:4x", "32768", "reserve"]
        assert ("--ladder-aliases" in args(spec)) == ("--chat-template" in args(spec)) == (component == "server")
    long = {"enabled": True, "values": {"ladder": "ntk:8x", "ladderPolicy": "length"}}
    pools = {"model": "a/b", **LADDER, "longPool": long}
    assert [value_after(pod(pools, pool="long"), flag) for flag in flags] == ["ntk:8x", "32768", "length"]
    assert [value_after(pod(pools), flag) for flag in flags] == ["yarn:4x", "32768", "reserve"]
    assert not {*flags, "--ladder-aliases"} & {*args(pod({}))}


class TestGroup:
    """vLLM's own several nodes, without Ray: the leader serves, the others run headless workers."""

    def test_one_pod_per_node_restarts_with_all_others(self) -> None:
        group = one(render(case("two-nodes")), "LeaderWorkerSet")
        assert group["spec"]["replicas"] == 1 and group["spec"]["leaderWorkerTemplate"]["size"] == 2
        assert group["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        annotations = group["metadata"]["annotations"]
        assert annotations == {"leaderworkerset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack"}
        # Else LeaderWorkerSet wants a headless service of the set's name, and the chart's own service has it.
        assert group["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
        ranks = ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
        for component in ("server", "worker"):
            words = args(pod(case("two-nodes"), component))
            assert words[words.index("--nnodes") :][:6] == ranks

    def test_a_worker_outlasts_the_requests_in_flight_and_ends_with_its_process(self) -> None:
        leader, worker = (pod(case("two-nodes"), component) for component in ("server", "worker"))
        command, sleep = worker["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        until = leader["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] + 600
        assert command == "sleep" and until < int(sleep) < worker["terminationGracePeriodSeconds"]
        assert "topologySpreadConstraints" in leader and "topologySpreadConstraints" not in worker

    def test_a_label_has_room_for_the_names_of_groups(self) -> None:
        """A LeaderWorkerSet's worker groups are StatefulSets NAME-0, whose pods have a label with a hash after it."""
        values: Values = {"fullnameOverride": "a" * 60, "longPool": {"enabled": True, "values": GROUP}, **GROUP}
        names = [each["metadata"]["name"] for each in render(values) if each["kind"] == "LeaderWorkerSet"]
        assert len(names) == 2 and all(len(f"{name}-99-0123456789") <= 63 for name in names)


def test_a_second_pool_leaves_the_first_where_it_is() -> None:
    """A Deployment's selector cannot change, and a new name would stop the old pods before new ones are up."""
    before = one(render({}), "Deployment")
    assert before == one(render({"longPool": {"enabled": True}}), "Deployment", "demo-ropeswitch")


@pytest.mark.parametrize(
    ("config", "layout", "length", "kv_cache_dtype"),
    [
        (LLAMA2_7B, Layout(8, 1, 2), 2097152, "auto"),
        (MISTRAL_7B, Layout(16, 2), 2097152, "fp8"),
        (MISTRAL_7B, Layout(1), 65536, "auto"),
    ],
)
def test_a_plans_values_make_pods_that_run_the_plans_command(
    config: dict[str, Any], layout: Layout, length: int, kv_cache_dtype: str
) -> None:
    shape = shape_from_config("c", config)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 16, 8, 1), Workload(length, 2, 0.9, 3))
    [chosen] = [candidate for candidate in plan.candidates if candidate.layout == layout]
    serving = Serving("a/model", length, 0.9, kv_cache_dtype, parse("yarn:2x,4x"), 32768, "reserve")
    values = helm_values(serving, shape, chosen)
    words = [
        {"HEAD_ADDRESS": "$(LWS_LEADER_ADDRESS)", "0": "$(LWS_WORKER_INDEX)"}.get(w, w)
        for w in serve_flags(serving, chosen)
    ]
    spec = pod(values)
    assert sorted(args(spec)[: len(words)]) == sorted(words)
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == chosen.placement.gpus_per_node
    assert any(kind == "worker" for _, kind, _ in templates(render(values))) == (chosen.placement.nodes > 1)
