"""What runs: security, volumes, probes, the time to leave, and groups of several nodes."""

import math
from typing import Any

import pytest

from tests.deploy.chart.helm import CASES, Object, Values, case, one, pod_of, pods, render


def flags(pod: Object) -> list[str]:
    [container] = pod["containers"]
    args: list[str] = container["args"]
    return args


def volumes(pod: Object) -> dict[str, Any]:
    return {each["name"]: each for each in pod["volumes"]}


@pytest.mark.parametrize("name", CASES)
def test_every_container_is_restricted(name: str) -> None:
    for pod in pods(render(case(name))).values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("name", CASES)
def test_every_mount_has_its_volume_and_every_volume_a_mount(name: str) -> None:
    for pod in pods(render(case(name))).values():
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert mounted == set(volumes(pod))
        for container in pod["containers"]:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))
            assert "/tmp" in paths or container["name"] == "passkey"


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
def test_shared_memory_on_cpus_and_for_several_ranks(parallelism: Values, shared: bool) -> None:
    pod = pod_of({"parallelism": parallelism, "shm": {"sizeLimit": "3Gi"}})
    assert volumes(pod).get("shm", {}).get("emptyDir") == ({"medium": "Memory", "sizeLimit": "3Gi"} if shared else None)
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert ("/dev/shm" in mounts) == shared


@pytest.mark.parametrize("name", CASES)
def test_where_the_user_wants_pods(name: str) -> None:
    everything = case(name)
    for where, pod in pods(render(everything)).items():
        # A load test's client need not be on a server's node.
        values = everything.get("loadTest", {}) if where.endswith("/job") else everything
        assert pod.get("nodeSelector") == values.get("nodeSelector")
        assert pod.get("tolerations") == values.get("tolerations")
        if not where.endswith("-test"):
            for key in ("affinity", "priorityClassName", "schedulerName", "runtimeClassName"):
                assert pod.get(key) == values.get(key)


def test_gpus_come_from_the_parallelism_where_resources_name_none() -> None:
    pod = pod_of({"parallelism": {"gpusPerNode": 1}, "resources": {"limits": {"memory": "1Gi"}}})
    assert pod["containers"][0]["resources"] == {"limits": {"memory": "1Gi", "nvidia.com/gpu": 1}}


def test_the_image_fits_the_hardware() -> None:
    def image(values: Values) -> str:
        name: str = pod_of(values)["containers"][0]["image"]
        return name

    assert image({}) == "ghcr.io/ropeswitch/ropeswitch:0.1.0-cpu"
    assert image({"parallelism": {"gpusPerNode": 1}}) == "ghcr.io/ropeswitch/ropeswitch:0.1.0"
    assert image({"image": {"tag": "mine"}}) == "ghcr.io/ropeswitch/ropeswitch:mine"
    digest = "sha256:" + "1" * 64
    assert image({"image": {"tag": "mine", "digest": digest}}) == f"ghcr.io/ropeswitch/ropeswitch@{digest}"


@pytest.mark.parametrize("seconds", [3600, 3601, 5])
def test_a_start_may_take_as_long_as_said(seconds: int) -> None:
    objects = render({"probes": {"startup": {"seconds": seconds}}})
    container = pods(objects)["demo-ropeswitch"]["containers"][0]
    startup = container["startupProbe"]
    assert startup["failureThreshold"] == math.ceil(seconds / startup["periodSeconds"])
    assert startup["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert one(objects, "Deployment")["spec"]["progressDeadlineSeconds"] > seconds


def test_the_time_to_leave() -> None:
    values = {"preStopSeconds": 7, "server": {"shutdownTimeout": 40}, "terminationGracePeriodSeconds": 78}
    pod = pod_of(values)
    assert pod["terminationGracePeriodSeconds"] == 78
    [container] = pod["containers"]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 7
    assert container["args"][container["args"].index("--shutdown-timeout") + 1] == "40"


def test_tls_keys_and_a_key_for_the_metrics() -> None:
    tls = {"tls": {"enabled": True, "existingSecret": "server-tls"}, "gateway": {"enabled": False}}
    objects = render({**case("everything"), **tls})
    pod = pods(objects)["demo-ropeswitch"]
    container = pod["containers"][0]
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert volumes(pod)["keys"]["secret"]["secretName"] == "keys"
    assert volumes(pod)["tls"]["secret"]["secretName"] == "server-tls"
    assert volumes(pod)["metrics-key"]["secret"]["secretName"] == "keys"
    [folder] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "metrics-key"]
    assert container["args"][container["args"].index("--metrics-key-file") + 1] == f"{folder}/metrics-key"
    [endpoint] = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"]["credentials"] == {"name": "keys", "key": "metrics-key"}


def test_several_api_servers_count_in_an_empty_folder() -> None:
    pod = pod_of({"server": {"apiServers": 2}})
    [container] = pod["containers"]
    [folder] = [each["value"] for each in container["env"] if each["name"] == "PROMETHEUS_MULTIPROC_DIR"]
    assert {"name": "prometheus", "mountPath": folder} in container["volumeMounts"]
    assert "emptyDir" in volumes(pod)["prometheus"]
    assert (
        container["command"][:2] == ["sh", "-c"]
        and 'rm -rf "${PROMETHEUS_MULTIPROC_DIR:?}"/*' in container["command"][2]
    )
    [alone] = pod_of({})["containers"]
    assert alone["command"] == ["ropeswitch"]
    assert "prometheus" not in volumes(pod_of({}))


class TestModel:
    def test_bundled(self) -> None:
        pod = pod_of({})
        assert flags(pod)[:2] == ["serve", "--enforce-eager"]
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in pod["containers"][0]["env"]
        assert "model" not in volumes(pod)

    def test_hub(self) -> None:
        pod = pod_of({"model": "a/b", "modelSource": {"hub": {"tokenSecret": "hub"}, "cache": {"existingClaim": "c"}}})
        [container] = pod["containers"]
        assert flags(pod)[:2] == ["serve", "a/b"]
        env = {each["name"]: each for each in container["env"]}
        assert "HF_HUB_OFFLINE" not in env
        assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
        assert {"name": "model", "mountPath": env["HF_HOME"]["value"]} in container["volumeMounts"]
        assert volumes(pod)["model"]["persistentVolumeClaim"]["claimName"] == "c"

    def test_a_claim_that_the_chart_makes_outlives_it(self) -> None:
        objects = render(case("two-nodes"))
        claim = one(objects, "PersistentVolumeClaim")
        assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert claim["spec"]["storageClassName"] == "shared"
        for pod in pods(objects).values():
            if "model" in volumes(pod):
                assert volumes(pod)["model"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]

    def test_a_folder_of_the_node(self) -> None:
        pod = pod_of({"model": "a/b", "modelSource": {"cache": {"size": "9Gi"}}})
        assert volumes(pod)["model"] == {"name": "model", "emptyDir": {"sizeLimit": "9Gi"}}

    def test_claim(self) -> None:
        pod = pods(render(case("single-node")))["demo-ropeswitch"]
        assert flags(pod)[:4] == ["serve", "/model", "--served-model-name", "llama2-7b"]
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "model"]
        assert mount == {"name": "model", "mountPath": "/model", "readOnly": True, "subPath": "llama2-7b"}
        assert volumes(pod)["model"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}

    @pytest.mark.parametrize(("model", "name"), [("/models/llama", "llama"), ("./llama", "llama"), ("a/b", "a/b")])
    def test_the_folder_of_a_plan(self, model: str, name: str) -> None:
        source = {"type": "pvc", "pvc": {"claimName": "models"}}
        pod = pod_of({"model": model, "modelSource": source})
        assert flags(pod)[:4] == ["serve", "/model", "--served-model-name", name]
        pod = pod_of({"model": model, "modelSource": source, "servedModelName": "mine"})
        assert flags(pod)[3] == "mine"

    @pytest.mark.parametrize(
        ("uri", "remote"),
        [
            ("s3://bucket/a/b", ":s3,env_auth=true:bucket/a/b"),
            ("gs://bucket/a", ":gcs,env_auth=true:bucket/a"),
            ("az://container/a", ":azureblob,env_auth=true:container/a"),
        ],
    )
    def test_object_store(self, uri: str, remote: str) -> None:
        endpoint = "https://e.com" if uri.startswith("s3://") else ""
        store = {"uri": uri, "credentialsSecret": "s", "endpoint": endpoint}
        pod = pod_of({"model": "m", "modelSource": {"type": "objectStore", "objectStore": store}})
        [download] = pod["initContainers"]
        assert download["args"][:2] == ["copy", remote]
        assert download["envFrom"] == [{"secretRef": {"name": "s"}}]
        assert [each["value"] for each in download["env"] if each["name"] == "RCLONE_S3_ENDPOINT"] == [endpoint] * bool(
            endpoint
        )
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "model"]
        # What was copied is what is served.
        assert download["args"][2] == f"/models/{mount['subPath']}" and mount["mountPath"] == flags(pod)[1] == "/model"


class TestFactors:
    def test_a_changed_file_replaces_the_pods(self) -> None:
        def template(content: str) -> Object:
            found: Object = one(render({"factors": {"content": content}}), "Deployment")["spec"]["template"]
            return found

        assert template("a")["metadata"] != template("b")["metadata"]
        assert template("a")["spec"] == template("b")["spec"]

    def test_the_file_is_mounted_where_the_flag_says(self) -> None:
        pod = pod_of({"factors": {"content": "{}"}})
        assert flags(pod)[flags(pod).index("--factors") + 1] == "/etc/ropeswitch/factors/factors.json"
        assert volumes(pod)["factors"]["configMap"]["name"] == "demo-ropeswitch-factors"

    def test_a_config_map_that_is_there(self) -> None:
        pod = pod_of({"factors": {"existingConfigMap": "mine", "key": "f.json"}})
        assert volumes(pod)["factors"]["configMap"] == {
            "name": "mine",
            "items": [{"key": "f.json", "path": "factors.json"}],
        }


class TestGroup:
    """vLLM's own several nodes, without Ray: the leader serves, the others run headless workers."""

    def test_leader_and_worker(self) -> None:
        group = one(render(case("two-nodes")), "LeaderWorkerSet")["spec"]
        assert group["replicas"] == 1
        assert group["leaderWorkerTemplate"]["size"] == 2
        assert group["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        specs = pods(render(case("two-nodes")))
        leader, worker = specs["demo-ropeswitch/leader"], specs["demo-ropeswitch/worker"]
        ranks = ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
        for pod in (leader, worker):
            start = flags(pod).index("--nnodes")
            assert flags(pod)[start : start + 6] == ranks
            assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/ib": 1}
        assert "--headless" in flags(worker) and "--headless" not in flags(leader)
        assert "--port" in flags(leader) and "--port" not in flags(worker)

    def test_a_worker_has_no_probe_and_no_keys(self) -> None:
        worker = pods(render(case("two-nodes")))["demo-ropeswitch/worker"]
        assert not {"startupProbe", "livenessProbe", "readinessProbe", "ports"} & set(worker["containers"][0])
        assert "keys" not in volumes(worker)

    def test_a_worker_outlasts_the_requests_in_hand(self) -> None:
        specs = pods(render(case("two-nodes")))
        leader, worker = (specs[f"demo-ropeswitch/{role}"] for role in ("leader", "worker"))
        sleep = int(worker["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        assert sleep > leader["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] + 600
        assert sleep < worker["terminationGracePeriodSeconds"]

    def test_the_topology_of_a_group(self) -> None:
        annotations = one(render(case("two-nodes")), "LeaderWorkerSet")["metadata"]["annotations"]
        assert annotations == {"leaderworkerset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack"}
        specs = pods(render(case("two-nodes")))
        assert "topologySpreadConstraints" in specs["demo-ropeswitch/leader"]
        assert "topologySpreadConstraints" not in specs["demo-ropeswitch/worker"]
