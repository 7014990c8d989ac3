"""The chart goes with the package, and takes the values of every chart before it."""

import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.chart.helm import CHART, HERE, chart, findings, render

RELEASED = sorted((HERE / "released").glob("*.yaml"))


def test_the_chart_serves_the_version_of_the_package() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert chart().metadata["appVersion"] == project["project"]["version"]


def test_the_values_of_this_version_are_kept_for_the_next() -> None:
    [kept] = [path for path in RELEASED if path.stem == chart().version]
    assert yaml.safe_load(kept.read_text(encoding="utf-8")) == chart().values


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_an_upgrade_takes_the_values_of_an_earlier_chart(path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert findings(values, "v1.35.0") == []
    now, before = render({}), render(values)
    assert [(each["kind"], each["metadata"]["name"]) for each in before] == [
        (each["kind"], each["metadata"]["name"]) for each in now
    ]
