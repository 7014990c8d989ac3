"""Load tests that are made again, where their results stay, and what the user is told and refused."""

import json
from typing import Any

import pytest
from helm_python import HelmError, HelmValuesError

from tests.deploy.chart.helm import Values, chart, findings, notes, one, render
from tests.deploy.chart.loadtests import KEYS, container, job, jobs, parsed, pod

CHANGES: list[Values] = [
    {"loadTest": {"run": 2}},
    {"loadTest": {"arguments": ["--seed=1"]}},
    {"loadTest": {"files": {"a.yaml": "a"}}},
    {"loadTest": {"activeDeadlineSeconds": 60}},
    {"image": {"tag": "other"}},
    KEYS,
]


@pytest.mark.parametrize("change", CHANGES, ids=json.dumps)
def test_a_change_makes_another_job(change: Values) -> None:
    """A Job's pod cannot be changed, so an upgrade with another one of the same name would fail."""
    before, after = job({}), job(change)
    assert before["spec"] != after["spec"] and before["metadata"]["name"] != after["metadata"]["name"]


def test_what_changes_nothing_leaves_the_job_alone() -> None:
    assert job({}) == job({"test": {"enabled": False}, "terminationGracePeriodSeconds": 200})
    queued = job({"commonLabels": {"kueue.x-k8s.io/queue-name": "gpus"}})
    assert queued["metadata"]["name"] == job({})["metadata"]["name"]


def test_files_that_change_make_another_job() -> None:
    first, second = (job({"loadTest": {"files": {"a.yaml": text}}}, "a.yaml") for text in "ab")
    assert first["metadata"]["name"] != second["metadata"]["name"]


class TestResults:
    def source(self, values: Values) -> Any:
        [volume] = [
            each for each in pod(job({"loadTest": {"results": values}}))["volumes"] if each["name"] == "results"
        ]
        return {key: value for key, value in volume.items() if key != "name"}

    def test_in_a_folder_of_the_node(self) -> None:
        assert self.source({"size": "9Gi"}) == {"emptyDir": {"sizeLimit": "9Gi"}}
        made = container(job({}))
        [folder] = [each["mountPath"] for each in made["volumeMounts"] if each["name"] == "results"]
        args = parsed(job({}))
        assert str(args.out.parent) == folder

    def test_on_a_claim_that_is_there(self) -> None:
        assert self.source({"existingClaim": "123"}) == {"persistentVolumeClaim": {"claimName": "123"}}

    def test_on_a_claim_that_outlives_the_release(self) -> None:
        objects = render({"loadTest": {"workloads": ["chat"], "results": {"create": True, "size": "9Gi"}}})
        claim = one(objects, "PersistentVolumeClaim")
        assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
        assert claim["spec"]["resources"] == {"requests": {"storage": "9Gi"}}
        assert "storageClassName" not in claim["spec"]
        name = claim["metadata"]["name"]
        assert self.source({"create": True}) == {"persistentVolumeClaim": {"claimName": name}}


def test_the_notes() -> None:
    printed = notes({"loadTest": {"workloads": ["chat", "mixed"]}})
    assert "Load tests chat, mixed start" in printed and "Warning: the 2 load tests run at the same time" in printed
    metadata = job({})["spec"]["template"]["metadata"]
    [selector] = [words for words in printed.split() if words.startswith("app.kubernetes.io/instance=demo,")]
    assert dict(pair.split("=") for pair in selector.split(",")).items() <= metadata["labels"].items()
    once = {"workloads": ["chat", "mixed"], "results": {"create": True}}
    assert "at the same time" not in notes({"loadTest": once})
    assert "at the same time" not in notes({"loadTest": {"workloads": ["chat"]}})


REFUSED: list[tuple[Values, str]] = [
    ({"workloads": ["mine.yaml"]}, r'loadTest.workloads: "mine.yaml" is not a key of loadTest.files'),
    (
        {"workloads": ["chat", "chat.yaml"], "files": {"chat.yaml": ""}},
        r'"chat.yaml" conflicts with "chat": their Jobs',
    ),
    (
        {"workloads": ["a" * 30 + ".yaml"], "files": {"a" * 30 + ".yaml": ""}},
        r"has 64 characters, but at most 63 are allowed",
    ),
    ({"workloads": ["chat"], "arguments": ["--out=/x"]}, r'loadTest.arguments: "--out=/x" is set by loadTest.results'),
    (
        {"workloads": ["chat"], "arguments": ["--url", "http://a"]},
        r'loadTest.arguments: "--url" is set by loadTest.url',
    ),
    (
        {"workloads": ["chat"], "argumentsByWorkload": {"chat": ["--wait=1"]}},
        r'loadTest.argumentsByWorkload.chat: "--wait=1" is set by probes.startup.seconds',
    ),
    ({"workloads": ["chat"], "argumentsByWorkload": {"mixed": []}}, r'"mixed" is not in loadTest.workloads'),
    (
        {"results": {"create": True, "existingClaim": "a"}},
        r'results.existingClaim: "a" conflicts with loadTest.results.create',
    ),
    (
        {"workloads": ["chat", "mixed"], "results": {"create": True, "accessMode": "ReadWriteOnce"}},
        r"results.accessMode: ReadWriteOnce allows only one node, but there are 2 Jobs",
    ),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_refused(values: Values, reason: str) -> None:
    with pytest.raises(HelmError, match=reason):
        render({"fullnameOverride": "a-ropeswitch-xy", "loadTest": values})


def test_what_is_just_allowed() -> None:
    name = "a" * 29
    allowed = {"workloads": [f"{name}.yaml"], "files": {f"{name}.yaml": ""}}
    [made] = jobs({"fullnameOverride": "a-ropeswitch-xy", "loadTest": allowed}).values()
    assert len(made["metadata"]["name"]) == 63
    once = {"workloads": ["chat"], "results": {"create": True, "accessMode": "ReadWriteOnce"}}
    assert findings({"loadTest": once}, "v1.35.0") == []


@pytest.mark.parametrize(
    "values",
    [
        {"workloads": ["Chat"]},
        {"workloads": ["chat", "chat"]},
        {"workloads": ["a/b.yaml"]},
        {"files": {"a b": ""}},
        {"files": {"a.yaml": {"name": "a"}}},
        {"url": "server:8000"},
        {"baseline": "http://"},
        {"run": "a b"},
        {"run": 0},
        {"arguments": "--quiet"},
        {"results": {"accessMode": "ReadOnlyMany"}},
    ],
    ids=json.dumps,
)
def test_the_schema_refuses(values: Values) -> None:
    with pytest.raises(HelmValuesError, match="loadTest"):
        chart().validate_schema({"loadTest": dict(values)})


def test_every_flag_that_the_chart_sets_is_refused_among_the_arguments() -> None:
    made = job({"loadTest": {"baseline": "http://b", "ca": {"existingSecret": "a"}}})
    flags = [arg.split("=")[0] for arg in container(made)["args"] if arg.startswith("--")]
    assert len(flags) == 5
    for flag in flags:
        with pytest.raises(HelmError, match=f'"{flag}=x" is set by'):
            job({"loadTest": {"arguments": [f"{flag}=x"]}})
