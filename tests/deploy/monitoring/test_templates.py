"""The chart brings the dashboard and the alerts along as they are, the alerts for its own release only."""

import re
from typing import Any

import pytest
import yaml

from tests.deploy.chart.helm import Object, Values, files, one, render
from tests.deploy.monitoring.files import ALERTS, DASHBOARD, SCOPE

LINK = "https://example.org/runbook"


def ruled(values: Values | None = None, **options: Any) -> Object:
    rule = {"enabled": True, "runbookUrl": LINK, "labels": {"release": "prometheus"}}
    return one(render({"metrics": {"prometheusRule": rule}, **(values or {})}, **options), "PrometheusRule")


def test_the_rules_are_those_of_the_file_for_this_release() -> None:
    rule = ruled()
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    for each in (each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each):
        assert each["annotations"].pop("runbook_url") == f"{LINK}#{each['alert'].lower()}"
    text = yaml.safe_dump(rule["spec"]["groups"], width=10**6)
    scoped = re.sub(r'namespace=\\?"llm\\?", job=~\\?"demo-ropeswitch[^"\\]*\\?"', "SCOPE", text)
    assert yaml.safe_load(scoped) == yaml.safe_load(ALERTS.read_text().replace(SCOPE, "SCOPE"))["groups"]


@pytest.mark.parametrize("pools", [False, True])
def test_the_rules_see_the_jobs_of_the_release_and_no_others(pools: bool) -> None:
    """A job is called like its service, and of the services those are scraped that have the servers of one pool."""
    values = {"longPool": {"enabled": pools}}
    component = "app.kubernetes.io/component"
    services = [each["metadata"] for each in render(values) if each["kind"] == "Service"]
    jobs = [each["name"] for each in services if each["labels"][component] == "server"]
    assert len(jobs) == 1 + pools
    text = yaml.safe_dump(ruled(values)["spec"]["groups"], width=10**6)
    [(namespace, pattern)] = set(re.findall(r'namespace=\\?"(\w+)\\?", job=~\\?"([^"\\]+)', text))
    assert namespace == "llm" and SCOPE not in text
    for job in jobs:
        assert re.fullmatch(pattern, job)
        assert not re.fullmatch(pattern, f"other-{job}") and not re.fullmatch(pattern, f"{job}-2")


def test_the_dashboard_is_that_of_the_file() -> None:
    chosen = {"enabled": True, "labels": {"grafana_dashboard": "yes"}, "annotations": {"kept": "too"}}
    board = one(
        render({"metrics": {"dashboards": {**chosen, "folder": "LLM"}}}), "ConfigMap", "demo-ropeswitch-dashboards"
    )
    assert board["metadata"]["annotations"] == {"grafana_folder": "LLM", "kept": "too"}
    assert board["metadata"]["labels"]["grafana_dashboard"] == "yes"
    assert board["data"] == {DASHBOARD.name: DASHBOARD.read_text(encoding="utf-8")}
    assert not {"templates/dashboards.yaml", "templates/prometheusrule.yaml"} & {*files({})}
