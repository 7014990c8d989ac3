"""Values that cannot work are refused when they are rendered, with the value and the reason."""

from typing import Any

import pytest
from helm_python import HelmError

from tests.deploy.chart.helm import HERE, case, containers, files, pod, read, render

REFUSED: list[dict[str, Any]] = read(HERE / "refused.yaml")


@pytest.mark.parametrize("each", REFUSED, ids=[each["reason"][:40] for each in REFUSED])
def test_values_that_cannot_work_are_refused_with_a_reason(each: dict[str, Any]) -> None:
    with pytest.raises(HelmError, match=each["reason"]):
        render(each["values"])
    if (pools := each["values"].get("longPool")) and "longPool" in each["reason"]:
        render({"longPool": pools | {"enabled": False}})


def test_the_plan_of_one_pool_says_nothing_of_the_other() -> None:
    assert render({**case("everything"), "plan": {"kvCapacity": 32768}})


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
        for flag in {*words} - {"--enable-log-requests", "--enable-ssl-refresh", "--enforce-eager"}:
            section, field = key.split(".")
            with pytest.raises(HelmError, match=f'"{flag}=x" is set by'):
                render({**values, section: {**values.get(section, {}), field: [f"{flag}=x"]}})
