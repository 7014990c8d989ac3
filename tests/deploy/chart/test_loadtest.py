"""Load tests: a Job for each workload, whose arguments the command's own parser takes, and that a change makes anew."""

import argparse
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from helm_python import HelmError

from ropeswitch.loadtests.client import workload as workloads
from ropeswitch.loadtests.client.cli import add_parser
from tests.deploy.chart.helm import Object, Values, case, files, findings, notes, one, render
from tests.deploy.chart.kinds import check
from tests.docs.pages import ROOT, blocks, commands

SHIPPED = sorted(workloads.shipped("workload"))
KEYS = {"apiKeys": {"enabled": True, "existingSecret": "keys"}}
PAGE = ROOT / "docs" / "loadtests.md"


def jobs(values: Values) -> dict[str, Object]:
    """Return the Jobs of a release by workload."""
    found = [each for each in render(values) if each["kind"] == "Job"]
    return {each["metadata"]["labels"]["ropeswitch.io/workload"]: each for each in found}


def job(values: Values, workload: str = "chat") -> Object:
    [found] = jobs({**values, "loadTest": {"workloads": [workload], **values.get("loadTest", {})}}).values()
    return found


def container(made: Object) -> Object:
    [found] = made["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def volume(made: Object, name: str) -> tuple[Object, str]:
    """Return a volume of a Job's pod and where it is mounted."""
    [found] = [each for each in made["spec"]["template"]["spec"]["volumes"] if each["name"] == name]
    [path] = [each["mountPath"] for each in container(made)["volumeMounts"] if each["name"] == name]
    return found, path


def parsed(made: Object) -> argparse.Namespace:
    """Return the arguments as the command reads them in a cluster."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args([arg.replace("$(JOB_NAME)", made["metadata"]["name"]) for arg in container(made)["args"]])


def test_every_shipped_workload_has_a_job_that_writes_to_its_own_folder() -> None:
    assert jobs({}) == {} and "Load tests" not in notes({})
    found = jobs({"loadTest": {"workloads": SHIPPED}})
    assert sorted(found) == SHIPPED
    for workload, made in found.items():
        args, name = parsed(made), made["metadata"]["name"]
        assert name.startswith(f"demo-ropeswitch-loadtest-{workload}-")
        assert workloads.load(args.workload).name == workload
        assert (
            args.url == "http://demo-ropeswitch:8000" and args.wait == 3600 and (args.baseline, args.ca) == (None, None)
        )
        assert args.out == Path(volume(made, "results")[1]) / name
    with pytest.raises(HelmError, match=f"not one of {', '.join(SHIPPED)}; your own"):
        render({"loadTest": {"workloads": ["chats"]}})


def test_a_users_workload_and_trace_are_where_they_name_each_other() -> None:
    values = case("everything")
    found = jobs(values)
    made, folder = volume(found["ours"], "loadtest")
    data = one(render(values), "ConfigMap", made["configMap"]["name"])["data"]
    assert data == values["loadTest"]["files"] and parsed(found["ours"]).workload == f"{folder}/ours.yaml"
    content = workloads.parse(yaml.safe_load(data["ours.yaml"]), "ours.yaml")
    assert content.arrival.trace is not None and content.arrival.trace.file == f"{folder}/ours.jsonl"
    chat, ours = parsed(found["chat"]), parsed(found["ours"])
    assert chat.assertions == ["failed==0", "band=0-8k,ttft_p99<0.5"] and chat.rate == (1.0, 2.0)
    assert ours.assertions == ["failed==0"] and ours.rate == ()
    assert chat.baseline == ours.baseline == "http://stock-vllm:8000"


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ("sk-1\nsk-2\n", "sk-1"),
        ("# of the clients\n\n \t\n  sk-1 \r\nsk-2", "sk-1"),
        ("sk-$HOME'\"\\`x`", "sk-$HOME'\"\\`x`"),
    ],
)
def test_the_command_gets_the_first_key_of_the_mounted_file(tmp_path: Path, keys: str, first: str) -> None:
    """The pod's own command, with another program by the name of ropeswitch."""
    made = job(KEYS)
    [path] = [each["value"] for each in container(made)["env"] if each["name"] == "API_KEY_FILE"]
    assert path == f"{volume(made, 'keys')[1]}/api-keys"
    (tmp_path / "ropeswitch").write_text('#!/bin/sh\nprintf \'%s\\n\' "$OPENAI_API_KEY" "$@"\n')
    (tmp_path / "ropeswitch").chmod(0o755)
    (tmp_path / "keys").write_text(keys)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "API_KEY_FILE": str(tmp_path / "keys")}
    command = [*container(made)["command"], "loadtest", "a b", "$(JOB_NAME)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [first, "loadtest", "a b", "$(JOB_NAME)"]
    environment["API_KEY_FILE"] = str(tmp_path / "none")
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 2
    assert container(job({}))["command"] == ["ropeswitch"]


def test_only_an_interrupted_test_starts_over() -> None:
    """A failed assertion and bad input end the Job, also on a drained node; out of memory would come again."""
    spec = job({})["spec"]

    def action(code: int, disrupted: bool = False) -> str:
        for rule in spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {"values": []})
            assert codes.get("containerName") in (None, spec["template"]["spec"]["containers"][0]["name"])
            if code in codes["values"] or (disrupted and "onPodConditions" in rule):
                return str(rule["action"])
        return "Count"

    assert [action(1), action(1, disrupted=True), action(2)] == ["FailJob"] * 3
    assert [action(130), action(143), action(137, disrupted=True), action(137)] == ["Ignore"] * 3 + ["Count"]


def test_a_change_makes_another_job_and_one_elsewhere_leaves_it_alone() -> None:
    """A Job's pod cannot be changed, so an upgrade with another one of the same name would fail."""
    before = job({})
    load_tests = [{"run": 2}, {"arguments": ["--seed=1"]}, {"files": {"a.yaml": "a"}}, {"activeDeadlineSeconds": 60}]
    for change in ({"image": {"tag": "other"}}, KEYS, *({"loadTest": each} for each in load_tests)):
        after = job(change)
        assert before["spec"] != after["spec"] and before["metadata"]["name"] != after["metadata"]["name"]
    other = [job({"loadTest": {"files": {"a.yaml": text}}}, "a.yaml")["metadata"]["name"] for text in "ab"]
    assert other[0] != other[1]
    assert before == job({"test": {"enabled": False}, "terminationGracePeriodSeconds": 200})
    queued = job({"commonLabels": {"kueue.x-k8s.io/queue-name": "gpus"}})
    assert queued["metadata"]["name"] == before["metadata"]["name"]


def test_the_pages_values_selectors_and_reader_fit_the_jobs() -> None:
    """docs/loadtests.md, on Kubernetes."""
    own = {text.partition("\n")[0]: yaml.safe_load(text) for text in blocks(PAGE, "yaml")}
    values, reader = own["# loadtest.yaml"], own["# results.yaml"]
    values["loadTest"]["files"] = {"office.yaml": "name: office"}
    found = jobs(values)
    assert sorted(found) == ["chat", "office"] and findings(values) == []
    assert parsed(found["chat"]).rate == (1.0, 2.0, 4.0)
    labels = found["chat"]["spec"]["template"]["metadata"]["labels"]
    selectors = [words[words.index("--selector") + 1] for words in commands(PAGE, "kubectl") if "--selector" in words]
    selectors += [word for word in notes(values).split() if word.startswith("app.kubernetes.io/instance=demo,")]
    assert len(selectors) == 4
    for selector in selectors:
        assert dict(pair.split("=") for pair in selector.split(",")).items() <= labels.items()
    [helm] = [words for words in commands(PAGE, "helm") if words[0] == "template"]
    text = files(values, release=helm[1])[helm[helm.index("--show-only") + 1]]
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["ConfigMap", "Job", "Job"]
    check(reader, "1.30")
    [claim] = [each["persistentVolumeClaim"]["claimName"] for each in reader["spec"]["volumes"]]
    assert yaml.safe_load(files(values, release="long")["templates/loadtest-claim.yaml"])["metadata"]["name"] == claim
    # Who may read the files that a test wrote.
    security = found["chat"]["spec"]["template"]["spec"]["securityContext"]
    assert reader["spec"]["securityContext"]["fsGroup"] == security["fsGroup"]
