"""Values that cannot work are refused when they are rendered, with the value and the reason; what just works is not."""

from typing import Any

import pytest
from helm_python import HelmError

from tests.deploy.chart.helm import HERE, case, containers, files, pod, read, render

REFUSED: list[dict[str, Any]] = read(HERE / "refused.yaml")
GPUS = {"tensor": 16, "gpusPerNode": 16}
PLAN = {"kvHeads": 8, "queriesPerKvHead": 4, "kvCapacity": 4096}
LONG_NAME = "a" * 29 + ".yaml"
KEYS = {"apiKeys": {"enabled": True, "existingSecret": "keys"}, "ingress": {"enabled": True, "hosts": ["a"]}}


@pytest.mark.parametrize("each", REFUSED, ids=[each["reason"][:40] for each in REFUSED])
def test_values_that_cannot_work_are_refused_with_a_reason(each: dict[str, Any]) -> None:
    with pytest.raises(HelmError, match=each["reason"]):
        render(each["values"])
    if (pools := each["values"].get("longPool")) and "longPool" in each["reason"]:
        render({"longPool": pools | {"enabled": False}})


@pytest.mark.parametrize(
    "values",
    [
        {"terminationGracePeriodSeconds": 71},
        {"maxModelLen": 4096, "plan": PLAN, "parallelism": {**GPUS, "decodeContext": 2}},
        {"parallelism": {**GPUS, "decodeContext": 2}},
        {
            "model": "a/b",
            "modelSource": {"cache": {"create": True, "accessMode": "ReadWriteOnce"}},
            "updateStrategy": {"maxSurge": 0, "maxUnavailable": 1},
        },
        {"loadTest": {"workloads": ["chat"], "results": {"create": True, "accessMode": "ReadWriteOnce"}}},
        {"fullnameOverride": "a-ropeswitch-xy", "loadTest": {"workloads": [LONG_NAME], "files": {LONG_NAME: ""}}},
        {**KEYS, "metrics": {"key": {"existingSecret": "metrics"}}, "publicPaths": ["/"]},
        {"ingress": KEYS["ingress"], "publicPaths": ["/"]},
        # The plan of one pool says nothing of the other.
        {**case("everything"), "plan": {"kvCapacity": 32768}},
    ],
)
def test_values_that_just_work_are_accepted(values: dict[str, Any]) -> None:
    assert render(values)


@pytest.mark.parametrize("release", ["1abc", "demo.v2"])
def test_a_release_name_that_no_service_can_have_is_refused(release: str) -> None:
    with pytest.raises(HelmError, match=r"fullnameOverride: .* it must begin with a letter"):
        files({}, release=release)


@pytest.mark.parametrize("name", ["everything", "single-node", "ladder"])
def test_every_flag_that_the_chart_sets_is_refused_among_the_users_own(name: str) -> None:
    for component, key in (("server", "server.extraArgs"), ("loadtest", "loadTest.arguments")):
        values = dict(case(name))
        if component == "loadtest":
            values["loadTest"] = {"workloads": ["chat"], "baseline": "http://b", "ca": {"existingSecret": "a"}}
        words = [arg.split("=")[0] for arg in containers(pod(values, component))[0]["args"] if arg.startswith("--")]
        for flag in {*words} - {"--log-prompts", "--enable-ssl-refresh", "--enforce-eager"}:
            section, field = key.split(".")
            with pytest.raises(HelmError, match=f'"{flag}=x" is set by'):
                render({**values, section: {**values.get(section, {}), field: [f"{flag}=x"]}})
