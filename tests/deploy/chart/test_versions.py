"""The chart goes with the package, and takes the values of every chart before it."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.chart.helm import CHART, HERE, chart, findings, render
from tests.deploy.chart.renew import kept

RELEASED = sorted((HERE / "released").iterdir())


def test_the_chart_serves_the_version_of_the_package() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert chart().metadata["appVersion"] == project["project"]["version"]


def test_the_values_of_this_version_are_kept_for_the_next() -> None:
    [folder] = [path for path in RELEASED if path.name == chart().version]
    assert yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8")) == chart().values


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.name)
def test_an_upgrade_takes_the_values_of_an_earlier_chart(path: Path) -> None:
    values = yaml.safe_load((path / "values.yaml").read_text(encoding="utf-8"))
    assert findings(values, "v1.35.0") == []
    now, before = render({}), render(values)
    assert [(each["kind"], each["metadata"]["name"]) for each in before] == [
        (each["kind"], each["metadata"]["name"]) for each in now
    ]


# Pods that an upgrade replaces on purpose: since 0.2.0 those on a CPU have a /dev/shm in which vLLM starts.
REPLACED = {"0.1.0": {"minimal"}}


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.name)
@pytest.mark.parametrize("reused", [False, True], ids=["new-defaults", "reuse-values"])
def test_an_upgrade_of_the_chart_alone_changes_nothing_fixed_and_replaces_no_pod(
    path: Path, tmp_path: Path, reused: bool
) -> None:
    """Also with `helm upgrade --reuse-values`, under which Helm leaves out the defaults of the new chart."""
    folder = tmp_path / "ropeswitch"
    shutil.copytree(CHART, folder)
    if reused:
        shutil.copy(path / "values.yaml", folder / "values.yaml")
    cases = json.loads((path / "cases.json").read_text(encoding="utf-8"))
    assert len(cases) > 3
    for name, each in cases.items():
        assert findings(each["values"], "v1.35.0", folder) == [], name
        found = kept(render(each["values"], folder=folder))
        for facts in (found, each["kept"]) if name in REPLACED.get(path.name, ()) else ():
            assert facts["Deployment/demo-ropeswitch"].pop("pod")
        assert found == each["kept"], name
