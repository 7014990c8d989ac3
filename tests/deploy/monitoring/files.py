"""The dashboards and alert rules of the chart, and the queries in them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.deploy.chart.helm import CHART
from tests.docs.pages import ROOT

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
RULE_TESTS = ROOT / "tests" / "deploy" / "monitoring" / "rules_test.yaml"
# Where make test-full unpacks it (requirements/debian.py).
PROMTOOL = ROOT / ".venv" / "debian" / "prometheus" / "usr" / "bin" / "promtool"
# What the rules select by; the chart replaces it.
SCOPE = 'job=~".*ropeswitch.*"'
# What Grafana puts in for its variables, or something like it.
VARIABLES = {"$__rate_interval": "5m", "$quantile": "0.95"}
_OPERATORS = {"and", "or", "unless", "bool"}
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


@dataclass(frozen=True)
class Asked:
    """A query, where it stands, and the labels that are shown of its result."""

    where: str
    query: str
    shown: frozenset[str] = frozenset()

    def selectors(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """Return each metric, and its matchers as label, operator and value."""
        bare = re.sub(
            r"\bby \([^)]*\)|\[[^\]]*\]|\$\w+", "", self.query.replace("$namespace", "NS").replace("$job", "JOB")
        )
        found = re.findall(r"(?<![\w.])([A-Za-z_:][\w:]*)(?![\w:]*\s*\()(?:\{([^}]*)\})?", bare)
        return [(name, _MATCHER.findall(matchers)) for name, matchers in found if name not in _OPERATORS]

    def grouped(self) -> set[str]:
        """Return the labels by which the query groups."""
        return {
            label.strip()
            for labels in re.findall(r"\bby \(([^)]*)\)", self.query)
            for label in labels.split(",")
            if label.strip()
        }


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels, those inside of collapsed rows too."""
    return [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", []))]


def boards() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in DASHBOARDS:
        yield file.name, json.loads(file.read_text(encoding="utf-8"))


def board_queries() -> list[Asked]:
    """Every query of the panels and of the variables."""
    found = []
    for name, board in boards():
        for panel in panels(board):
            for target in panel.get("targets", []):
                shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
                where = f"{name}: {panel['title']}, {target['refId']}"
                found.append(Asked(where, target["expr"], frozenset(shown)))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
                found.append(Asked(f"{name}: ${variable['name']}", f"count by ({label}) ({selector})"))
    return found


def alert_queries() -> list[Asked]:
    return [Asked(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def filled(query: str) -> str:
    """A dashboard's query as Grafana sends it, where no variable is narrowed."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return re.sub(r'"\$\w+"', '".*"', query)
