"""The chart brings the dashboards and the alerts along as they are, the alerts for its own release only."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from tests.deploy.monitoring.files import ALERTS, CHART, DASHBOARDS, RULE_TESTS, SCOPE
from tests.deploy.monitoring.test_rules import promtool

LINK = "https://example.org/runbook"


def rendered(template: str, **metrics: Any) -> dict[str, Any] | None:
    """What one template makes of these values under ``metrics``, for the release ``llm`` in the namespace ``prod``."""
    with Chart.load(CHART) as chart:
        made = chart.render({"metrics": metrics}, name="llm", namespace="prod")
    document: dict[str, Any] | None = yaml.safe_load(made[f"ropeswitch/templates/{template}"])
    return document


def ruled(**more: Any) -> dict[str, Any]:
    rule = rendered("prometheusrule.yaml", prometheusRule={"enabled": True, "runbookUrl": LINK, **more})
    assert rule is not None
    return rule


def unscoped(groups: Any) -> Any:
    """The rules as they are in the file."""
    text = yaml.safe_dump(groups, width=10**6)
    text = re.sub(r'namespace=\\?"prod\\?", job=~\\?"llm-ropeswitch[^"\\]*\\?"', "SCOPE", text)
    return yaml.safe_load(text)


def test_neither_is_there_unless_asked_for() -> None:
    assert rendered("prometheusrule.yaml") is None and rendered("dashboards.yaml") is None


def test_the_rules_are_those_of_the_file() -> None:
    rule = ruled(labels={"release": "prometheus"})
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["metadata"]["name"] == "llm-ropeswitch"
    assert rule["metadata"]["labels"].items() >= {"release": "prometheus", "app.kubernetes.io/instance": "llm"}.items()
    groups = rule["spec"]["groups"]
    for each in (each for group in groups for each in group["rules"] if "alert" in each):
        assert each["annotations"].pop("runbook_url") == f"{LINK}#{each['alert'].lower()}"
    file = yaml.safe_load(ALERTS.read_text().replace(SCOPE, "SCOPE"))
    assert unscoped(groups) == file["groups"]


@pytest.mark.parametrize("pools", [False, True])
def test_the_rules_see_the_jobs_of_the_release(pools: bool) -> None:
    """A job is called like its service, and of the services those are scraped that have the servers of one pool."""
    with Chart.load(CHART) as chart:
        made = chart.render({"longPool": {"enabled": pools}}, name="llm", namespace="prod")
    services = list(yaml.safe_load_all(made["ropeswitch/templates/service.yaml"]))
    component = "app.kubernetes.io/component"
    jobs = [each["metadata"]["name"] for each in services if each and each["metadata"]["labels"][component] == "server"]
    assert len(jobs) == 1 + pools
    text = yaml.safe_dump(ruled()["spec"]["groups"], width=10**6)
    [(namespace, pattern)] = set(re.findall(r'namespace=\\?"(\w+)\\?", job=~\\?"([^"\\]+)', text))
    assert namespace == "prod" and SCOPE not in text
    for job in jobs:
        assert re.fullmatch(pattern, job)
        assert not re.fullmatch(pattern, f"other-{job}") and not re.fullmatch(pattern, f"{job}-2")


@pytest.mark.full
def test_the_rendered_rules_pass_the_same_tests(tmp_path: Path) -> None:
    groups = ruled()["spec"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule.get("annotations", {}).pop("runbook_url", None)
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": groups}))
    tests = yaml.safe_load(RULE_TESTS.read_text()) | {"rule_files": ["alerts.yaml"]}
    (tmp_path / "rules_test.yaml").write_text(yaml.safe_dump(tests))
    promtool("check", "rules", tmp_path / "alerts.yaml")
    promtool("test", "rules", tmp_path / "rules_test.yaml")


def test_the_dashboards_are_those_of_the_files() -> None:
    chosen = {"labels": {"grafana_dashboard": "yes"}, "annotations": {"kept": "too"}, "folder": "LLM"}
    board = rendered("dashboards.yaml", dashboards={"enabled": True, **chosen})
    assert board is not None
    assert (board["kind"], board["metadata"]["name"]) == ("ConfigMap", "llm-ropeswitch-dashboards")
    assert board["metadata"]["annotations"] == {"grafana_folder": "LLM", "kept": "too"}
    assert (
        board["metadata"]["labels"].items() >= {"grafana_dashboard": "yes", "app.kubernetes.io/instance": "llm"}.items()
    )
    assert board["data"] == {file.name: file.read_text(encoding="utf-8") for file in DASHBOARDS}


def test_a_dashboard_without_a_folder_has_no_annotations() -> None:
    board = rendered("dashboards.yaml", dashboards={"enabled": True})
    assert board is not None and board["data"] and "annotations" not in board["metadata"]
