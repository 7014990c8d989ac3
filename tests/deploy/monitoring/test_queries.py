"""Dashboards and alerts ask for metrics and labels that the server exposes, and only of the chosen servers."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.monitoring.exposed import TARGET_LABELS, VALUES, Series, ours, vllm
from tests.deploy.monitoring.files import (
    ALERTS,
    PROMTOOL,
    RULE_TESTS,
    SCOPE,
    Asked,
    alert_queries,
    alerts,
    board_queries,
    filled,
    rules,
)  # fmt: skip
from tests.docs.pages import ROOT, blocks


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def known() -> Series:
    series = ours() | vllm() | {"up": frozenset()}
    for asked in alert_queries():
        if asked.where not in alerts():
            series[asked.where] = frozenset(asked.grouped()) - {"le"} - TARGET_LABELS
    return series


@pytest.mark.parametrize("asked", board_queries() + alert_queries(), ids=lambda asked: asked.where)
def test_a_query_asks_for_metrics_labels_and_values_that_exist(asked: Asked, known: Series) -> None:
    labels = set(TARGET_LABELS)
    assert asked.selectors()
    for name, matchers in asked.selectors():
        assert name in known, name
        labels |= known[name]
        for label, operator, value in matchers:
            assert label in known[name] | TARGET_LABELS
            if (name, label) in VALUES:
                assert ({value} if operator in ("=", "!=") else set(value.split("|"))) <= VALUES[name, label]
    assert asked.shown <= asked.grouped() <= labels


@pytest.mark.parametrize("asked", board_queries() + alert_queries(), ids=lambda asked: asked.where)
def test_a_query_looks_at_the_chosen_servers_only(asked: Asked) -> None:
    if asked in alert_queries():
        assert asked.query.count(SCOPE) == len(asked.selectors())
        return
    chosen = [("namespace", "=~", "NS"), ("job", "=~", "JOB")]
    # These two are chosen first, one after the other.
    needed = {"$namespace": [], "$job": chosen[:1]}.get(asked.where, chosen)
    assert all({*needed} <= {*matchers} for _, matchers in asked.selectors())


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_is_wrong_and_has_a_case_where_it_fires_and_one_where_it_does_not(name: str) -> None:
    alert = alerts()[name]
    assert name.startswith("Ropeswitch") and alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description"}
    cases = [case for test in yaml.safe_load(RULE_TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {bool(case["exp_alerts"]) for case in cases if case["alertname"] == name} == {True, False}


@pytest.mark.full
def test_prometheus_reads_every_rule_and_query_and_the_rules_fire_as_their_cases_say(tmp_path: Path) -> None:
    promtool("check", "rules", "--lint-fatal", ALERTS)
    promtool("test", "rules", RULE_TESTS)
    examples = "\n".join(block.strip() for block in blocks(ROOT / "docs" / "metrics.md", "text"))
    page = re.split(r"\n(?=\w)", examples)
    assert len(page) == 3
    queries = [*page, *(filled(asked.query) for asked in board_queries())]
    records = [{"record": f"q{place}", "expr": query} for place, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "queries", "rules": records}]}))
    promtool("check", "rules", tmp_path / "rules.yaml")
    assert len(rules()) > len(alerts())
