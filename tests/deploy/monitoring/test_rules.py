"""The alert rules: complete, valid to ``promtool``, and each with a case where it fires and one where it does not."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.monitoring.files import ALERTS, PROMTOOL, RULE_TESTS, alerts, board_queries, filled


def promtool(*arguments: str | Path) -> str:
    """What it prints, and that it has no objections."""
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", alerts())
def test_an_alert_tells_what_is_wrong(name: str) -> None:
    alert = alerts()[name]
    assert name.startswith("Ropeswitch")
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description"}
    assert all(text.endswith(".") for text in alert["annotations"].values())


@pytest.mark.parametrize("name", alerts())
def test_an_alert_has_cases_of_both_kinds(name: str) -> None:
    cases = [case for test in yaml.safe_load(RULE_TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {bool(case["exp_alerts"]) for case in cases if case["alertname"] == name} == {True, False}


@pytest.mark.full
def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", "--lint-fatal", ALERTS)
    promtool("test", "rules", RULE_TESTS)


@pytest.mark.full
def test_prometheus_reads_every_query_of_the_dashboards(tmp_path: Path) -> None:
    records = [{"record": f"q{place}", "expr": filled(asked.query)} for place, asked in enumerate(board_queries())]
    promtool("check", "rules", _written(tmp_path, {"groups": [{"name": "queries", "rules": records}]}))


def _written(folder: Path, rules: dict[str, Any]) -> Path:
    file = folder / "rules.yaml"
    file.write_text(json.dumps(rules))
    return file
