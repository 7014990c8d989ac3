"""Load tests: a Job for each workload, whose arguments the command's own parser takes."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from helm_python import HelmError

from ropeswitch.loadtests.client import workload as workloads
from tests.deploy.chart.helm import case, notes, one, render
from tests.deploy.chart.loadtests import KEYS, container, job, jobs, parsed, pod

SHIPPED = sorted(workloads.shipped("workload"))
ENDS = {"done": 0, "assertion": 1, "bad input": 2, "interrupted": 130, "SIGTERM before": 143}


def test_none_unless_asked_for() -> None:
    assert jobs({}) == {} and "Load tests" not in notes({})
    kinds = [each["kind"] for each in render({"loadTest": {"files": {"a.yaml": ""}}})]
    assert kinds.count("ConfigMap") == 1


@pytest.mark.parametrize("workload", SHIPPED)
def test_every_shipped_workload(workload: str) -> None:
    made = job({}, workload)
    name = made["metadata"]["name"]
    assert name.startswith(f"demo-ropeswitch-loadtest-{workload}-")
    args = parsed(made)
    assert workloads.load(args.workload).name == workload
    assert args.url == "http://demo-ropeswitch:8000" and args.wait == 3600
    assert args.out == Path("/results") / name
    assert (args.baseline, args.ca) == (None, None)


def test_the_chart_knows_what_is_shipped() -> None:
    assert sorted(jobs({"loadTest": {"workloads": SHIPPED}})) == SHIPPED
    with pytest.raises(HelmError, match=f"not one of {', '.join(SHIPPED)}; your own"):
        render({"loadTest": {"workloads": ["chats"]}})


def test_a_workload_and_a_trace_of_its_own() -> None:
    values = case("everything")
    made = jobs(values)["ours"]
    [folder] = [each["mountPath"] for each in container(made)["volumeMounts"] if each["name"] == "loadtest"]
    [volume] = [each for each in pod(made)["volumes"] if each["name"] == "loadtest"]
    data = one(render(values), "ConfigMap", volume["configMap"]["name"])["data"]
    assert data == values["loadTest"]["files"]
    assert parsed(made).workload == f"{folder}/ours.yaml"
    content = workloads.parse(yaml.safe_load(data["ours.yaml"]), "ours.yaml")
    assert content.arrival.trace is not None and content.arrival.trace.file == f"{folder}/ours.jsonl"


def test_arguments_of_all_and_of_one() -> None:
    found = jobs(case("everything"))
    chat, ours = parsed(found["chat"]), parsed(found["ours"])
    assert chat.assertions == ["failed==0", "band=0-8k,ttft_p99<0.5"] and chat.rate == (1.0, 2.0)
    assert ours.assertions == ["failed==0"] and ours.rate == ()
    assert chat.baseline == ours.baseline == "http://stock-vllm:8000"


def test_the_service_of_the_release() -> None:
    services = {
        each["metadata"]["name"]: each["spec"]["ports"][0]["port"]
        for each in render({**case("everything"), "service": {"port": 8443}})
        if each["kind"] == "Service"
    }
    args = parsed(job({**case("everything"), "loadTest": {}, "service": {"port": 8443}}))
    # Of two pools the first; the service over both looks at no header.
    assert args.url == "http://demo-ropeswitch-short:8443" and services["demo-ropeswitch-short"] == 8443
    assert parsed(job({"tls": {"enabled": True, "existingSecret": "a"}})).url == "https://demo-ropeswitch:8000"
    assert parsed(job({"loadTest": {"url": "https://llm.example.com"}})).url == "https://llm.example.com"


def test_the_servers_certificate_and_not_its_key() -> None:
    made = jobs(case("single-node"))["million"]
    [volume] = [each for each in pod(made)["volumes"] if each["name"] == "ca"]
    [folder] = [each["mountPath"] for each in container(made)["volumeMounts"] if each["name"] == "ca"]
    assert volume["secret"]["secretName"] == "server-tls"
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert parsed(made).ca == f"{folder}/ca.crt"


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ("sk-1\nsk-2\n", "sk-1"),
        ("# of the clients\n\n \t\n  sk-1 \r\nsk-2", "sk-1"),
        ("sk-$HOME'\"\\`x`", "sk-$HOME'\"\\`x`"),
    ],
)
def test_the_key_that_the_command_gets(tmp_path: Path, keys: str, first: str) -> None:
    """The pod's own command, with another program by the name of ropeswitch."""
    made = container(job(KEYS))
    [path] = [each["value"] for each in made["env"] if each["name"] == "API_KEY_FILE"]
    [folder] = [each["mountPath"] for each in made["volumeMounts"] if each["name"] == "keys"]
    assert path == f"{folder}/api-keys"
    (tmp_path / "ropeswitch").write_text('#!/bin/sh\nprintf \'%s\\n\' "$OPENAI_API_KEY" "$@"\n')
    (tmp_path / "ropeswitch").chmod(0o755)
    (tmp_path / "keys").write_text(keys)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "API_KEY_FILE": str(tmp_path / "keys")}
    command = [*made["command"], "loadtest", "a b", "$(JOB_NAME)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [first, "loadtest", "a b", "$(JOB_NAME)"]
    environment["API_KEY_FILE"] = str(tmp_path / "none")
    assert subprocess.run(command, env=environment, capture_output=True).returncode == ENDS["bad input"]


def test_without_keys_there_is_no_shell() -> None:
    made = job({})
    assert container(made)["command"] == ["ropeswitch"]
    assert "keys" not in {each["name"] for each in pod(made)["volumes"]}


class TestEnd:
    """Kubernetes' rules for a pod that failed, the first that fits: the Job is over, or the pod counts for nothing."""

    @staticmethod
    def action(code: int, disrupted: bool = False) -> str:
        spec = job({})["spec"]
        for rule in spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if codes and codes["operator"] == "In" and code in codes["values"]:
                assert codes["containerName"] == container(job({}))["name"]
                return str(rule["action"])
            if disrupted and {"type": "DisruptionTarget", "status": "True"} in rule.get("onPodConditions", []):
                return str(rule["action"])
        assert spec["backoffLimit"] == 0
        return "Count"

    def test_what_came_to_its_end_is_over(self) -> None:
        for end in ("assertion", "bad input"):
            assert self.action(ENDS[end]) == self.action(ENDS[end], disrupted=True) == "FailJob"

    def test_what_had_to_go_goes_on(self) -> None:
        assert self.action(ENDS["interrupted"]) == self.action(ENDS["SIGTERM before"]) == "Ignore"
        assert self.action(137, disrupted=True) == "Ignore"
        # Out of memory, which would come again.
        assert self.action(137) == "Count"

    def test_a_pod_is_told_to_stop_at_any_time(self) -> None:
        """Signals reach a first process only where it asked for them."""
        assert pod(job({}))["shareProcessNamespace"] is True
        assert pod(job({}))["restartPolicy"] == "Never"


def test_how_long_it_may_take_and_stay() -> None:
    spec = jobs(case("single-node"))["million"]["spec"]
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (14400, 86400)
    assert not {"activeDeadlineSeconds", "ttlSecondsAfterFinished"} & set(job({})["spec"])
