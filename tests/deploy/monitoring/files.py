"""The dashboard and alert rules of the chart, and the queries in them."""

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from tests.deploy.chart.helm import CHART
from tests.docs.pages import ROOT

ALERTS = CHART / "files" / "alerts.yaml"
[DASHBOARD] = (CHART / "files" / "dashboards").glob("*.json")
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
# All panels, those inside of collapsed rows too.
PANELS: list[dict[str, Any]] = [inner for panel in BOARD["panels"] for inner in (panel, *panel.get("panels", []))]
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
        return set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", self.query))))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def board_queries() -> list[Asked]:
    """Every query of the panels and of the variables."""
    found = []
    for panel in PANELS:
        for target in panel.get("targets", []):
            shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
            found.append(Asked(f"{panel['title']}, {target['refId']}", target["expr"], frozenset(shown)))
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            [(selector, label)] = re.findall(r"^label_values\((.*), (\w+)\)$", variable["query"]["query"])
            found.append(Asked(f"${variable['name']}", f"count by ({label}) ({selector})"))
    return found


def alert_queries() -> list[Asked]:
    return [Asked(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def filled(query: str) -> str:
    """A dashboard's query as Grafana sends it, where no variable is narrowed."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return re.sub(r'"\$\w+"', '".*"', query)
