"""What a platform team adds of its own: containers, environment, claims of devices, a chat template, KEDA's credentials."""

from typing import Any

import pytest
from helm_python import HelmError

from tests.deploy.chart.helm import CASES, OPTIONAL_APIS, Values, case, files, notes, one, pod_of, pods, render

CLAIMS = {
    "parallelism": {"tensor": 8, "gpusPerNode": 8},
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "eight-gpus"}],
    "resources": {"claims": [{"name": "gpu"}], "limits": {"memory": "1Gi"}},
    "gpusFromClaims": True,
}


def test_containers_of_its_own() -> None:
    for name in ("demo-ropeswitch", "demo-ropeswitch-long/leader", "demo-ropeswitch-long/worker"):
        pod = pod_of(case("everything"), name)
        assert [each["name"] for each in pod["containers"]] == ["ropeswitch", "beside"]
        assert [each["name"] for each in pod["initContainers"]] == ["model", "before"]
    pod = pod_of({"server": {"extraInitContainers": [{"name": "before"}]}})
    assert pod["initContainers"] == [{"name": "before"}]


@pytest.mark.parametrize("name", CASES)
def test_no_variable_is_set_twice(name: str) -> None:
    for pod in pods(render(case(name))).values():
        for container in pod["containers"]:
            names = [each["name"] for each in container.get("env", [])]
            assert len(names) == len(set(names))


def test_a_variable_of_its_own_replaces_the_charts() -> None:
    container = pod_of(case("everything"))["containers"][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert (env["USER"], env["LOG_LEVEL"], env["HF_HUB_OFFLINE"]) == ("someone", "info", "1")
    assert container["envFrom"] == [{"configMapRef": {"name": "more"}}]
    assert "envFrom" not in pod_of({})["containers"][0]


def test_gpus_from_claims() -> None:
    pod = pod_of(CLAIMS)
    assert pod["resourceClaims"] == CLAIMS["resourceClaims"]
    assert pod["containers"][0]["resources"] == CLAIMS["resources"]
    pod = pod_of({**CLAIMS, "gpusFromClaims": False})
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": 8}


def test_parts_of_gpus_are_named_by_the_user() -> None:
    part = {"nvidia.com/mig-3g.40gb": 1}
    pod = pod_of({"parallelism": {"gpusPerNode": 1}, "resources": {"limits": part}})
    assert pod["containers"][0]["resources"] == {"limits": part}


def test_a_chat_template_goes_to_what_answers() -> None:
    objects = render({**case("two-nodes"), "chatTemplate": {"content": "{{ messages }}\n"}})
    made = one(objects, "ConfigMap", "demo-ropeswitch-chat-template")
    assert made["data"] == {"chat-template.jinja": "{{ messages }}\n"}
    leader, worker = (pods(objects)[f"demo-ropeswitch/{role}"] for role in ("leader", "worker"))
    [container] = leader["containers"]
    path = container["args"][container["args"].index("--chat-template") + 1]
    [volume] = [each for each in leader["volumes"] if each["name"] == "chat-template"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "chat-template"]
    assert path == f"{mount['mountPath']}/{volume['configMap']['items'][0]['path']}"
    assert volume["configMap"]["name"] == made["metadata"]["name"]
    assert "--chat-template" not in worker["containers"][0]["args"]
    assert "chat-template" not in {each["name"] for each in worker["volumes"]}


def test_a_changed_chat_template_replaces_the_pods() -> None:
    def annotations(content: str) -> Any:
        objects = render({"chatTemplate": {"content": content}})
        return one(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations("a") != annotations("b")


def test_a_chat_template_that_is_there() -> None:
    pod = pod_of({"chatTemplate": {"existingConfigMap": "mine", "key": "t.jinja"}})
    [volume] = [each for each in pod["volumes"] if each["name"] == "chat-template"]
    assert volume["configMap"] == {"name": "mine", "items": [{"key": "t.jinja", "path": "chat-template.jinja"}]}


def test_what_keda_shows_prometheus() -> None:
    for name in ("demo-ropeswitch", "demo-ropeswitch-long"):
        [trigger] = one(render(case("everything")), "ScaledObject", name)["spec"]["triggers"]
        assert trigger["authenticationRef"] == {"name": "prometheus"}
        assert trigger["metadata"]["authModes"] == "bearer"
    keda = {"enabled": True, "serverAddress": "http://a"}
    [trigger] = one(render({"autoscaling": {"keda": keda}}), "ScaledObject")["spec"]["triggers"]
    assert "authenticationRef" not in trigger and "authModes" not in trigger["metadata"]


@pytest.mark.parametrize(
    ("own", "thresholds"),
    [
        ({"queuedTokensPerReplicaByClass": {"long": 3}}, ["3"]),
        ({"queuedTokensPerReplica": 4}, ["4"]),
        ({"maxReplicas": 9}, ["1", "2"]),
    ],
)
def test_a_target_of_the_long_pool_is_instead_of_the_first_pools(own: Values, thresholds: list[str]) -> None:
    keda = {"enabled": True, "serverAddress": "http://a"}
    scaling = {"keda": keda, "queuedTokensPerReplicaByClass": {"short": 1, "long": 2}}
    objects = render({"autoscaling": scaling, "longPool": {"enabled": True, "values": {"autoscaling": own}}})
    triggers = one(objects, "ScaledObject", "demo-ropeswitch-long")["spec"]["triggers"]
    assert sorted(each["metadata"]["threshold"] for each in triggers) == thresholds
    first = one(objects, "ScaledObject", "demo-ropeswitch")["spec"]["triggers"]
    assert sorted(each["metadata"]["threshold"] for each in first) == ["1", "2"]


def test_who_reaches_the_servers_is_told() -> None:
    everything = case("everything")
    assert "Prometheus must be among them" in notes(everything)
    assert "Prometheus must be" not in notes({**everything, "networkPolicy": {"from": []}})


def test_pods_that_copy_a_model_at_once_do_not_write_into_one_file() -> None:
    [download, _] = pod_of(case("everything"))["initContainers"]
    [uid] = [each for each in download["env"] if each["name"] == "POD_UID"]
    assert uid["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert download["command"][-1] == "rclone" and download["resources"] == {"limits": {"memory": "2Gi"}}
    # rclone takes at most 16 characters.
    assert '--partial-suffix ".$(printf %.8s "$POD_UID").part"' in download["command"][2]


def test_a_group_finds_its_leader_before_that_is_ready() -> None:
    """Else LeaderWorkerSet wants a headless service of the set's name, and the chart's own service has it."""
    for name in ("two-nodes", "everything"):
        objects = render(case(name))
        groups = [each for each in objects if each["kind"] == "LeaderWorkerSet"]
        assert groups
        for group in groups:
            assert group["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}


def test_the_clusters_own_class_of_ingress() -> None:
    ingress = {"enabled": True, "className": "", "hosts": ["llm.example.com"]}
    assert "ingressClassName" not in one(render({"ingress": ingress}), "Ingress")["spec"]


def test_the_notes_know_both_pools() -> None:
    everything = case("everything")
    without = [each for each in OPTIONAL_APIS if not each.startswith("leaderworkerset")]
    assert "Warning: LeaderWorkerSet (several nodes)" in notes(everything, apis=without)
    gateway = {"enabled": True, "parentRefs": [{"name": "a"}]}
    pools = {"enabled": True, "values": {"server": {"maxBodyMiB": 512}}}
    assert "it must allow 512 MiB" in notes({"gateway": gateway, "longPool": pools})


@pytest.mark.parametrize("release", ["1abc", "demo.v2"])
def test_a_release_whose_name_no_service_can_have(release: str) -> None:
    with pytest.raises(HelmError, match=r"fullnameOverride: .* it must begin with a letter"):
        files({}, release=release)
