"""A release of an earlier chart upgrades to this one: same names and selectors, and pods that differ only where they should.

``released/`` has each released chart without its dashboards. To release one, pack it there, and raise the version.
"""

import shutil
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart.helm import CASES, CHART, HERE, Object, case, chart, containers, findings, render

RELEASED = sorted((HERE / "released").glob("*.tgz"))


def fixed(objects: list[Object]) -> dict[str, Any]:
    """Return what Kubernetes lets no upgrade change, and the pods, which a change would replace, by kind and name."""
    found: dict[str, Any] = {}
    for each in objects:
        spec, name = each.get("spec", {}), f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Deployment":
            found[name] = {"selector": spec["selector"], "server": spec["template"]}
        elif each["kind"] == "LeaderWorkerSet":
            template = spec["leaderWorkerTemplate"]
            found[name] = {"size": template["size"], "server": template["leaderTemplate"]}
            found[name] |= {"worker": template["workerTemplate"]}
        elif each["kind"] == "PersistentVolumeClaim":
            found[name] = spec
        elif each["kind"] == "Service":
            found[name] = {"type": spec["type"], "selector": spec["selector"]}
    return found


def without_news(now: dict[str, Any], before: dict[str, Any], version: str) -> None:
    """Remove from new pods what an upgrade replaces them for.

    0.4.0 limits the memory of pods without a limit, and ends a stalled server sooner. 0.2.0 gave pods on one CPU rank a
    /dev/shm.
    """
    bare = version == "0.1.0" and "shm" not in str(before["volumes"])
    for new, old in zip(containers(now), containers(before), strict=True):
        if probe := new.get("livenessProbe"):
            assert probe.pop("terminationGracePeriodSeconds") == 60
        for kind in ("limits", "requests"):
            added, had = (each.get("resources", {}).get(kind) or {} for each in (new, old))
            assert had.items() <= added.items() and added.keys() - had.keys() <= {"memory"}
        if "resources" in new:
            new["resources"] = old["resources"]
        if bare:
            new["volumeMounts"] = [each for each in new["volumeMounts"] if each["name"] != "shm"]
    if bare:
        now["volumes"] = [each for each in now["volumes"] if each["name"] != "shm"]


def test_the_version_is_new_and_serves_the_packages_version() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert chart().metadata["appVersion"] == project["project"]["version"]
    assert chart().version not in [path.stem for path in RELEASED] and len(RELEASED) > 2


@pytest.mark.parametrize("reused", [False, True], ids=["new-defaults", "reuse-values"])
@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_an_upgrade_keeps_what_is_fixed_and_explains_every_replaced_pod(
    path: Path, reused: bool, tmp_path: Path
) -> None:
    """Also with ``helm upgrade --reuse-values``, under which Helm leaves out the defaults of the new chart."""
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    old, folder = tmp_path / "old" / "ropeswitch", tmp_path / "ropeswitch"
    shutil.copytree(CHART, folder)
    if reused:
        shutil.copy(old / "values.yaml", folder)
    compared = 0
    for name in CASES:
        values = case(name)
        if name == "inference-pool" and path.stem == "0.1.0":
            continue  # that chart had none
        assert findings(values, folder=folder) == [], name
        before, now = (fixed(render(values, path=each)) for each in (old, folder))
        assert now.keys() == before.keys()
        for found, was in ((now[key], before[key]) for key in now):
            for role in ("server", "worker"):
                if role in found:
                    without_news(found[role]["spec"], was[role]["spec"], path.stem)
            assert found == was, name
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_the_default_values_of_an_earlier_chart_are_accepted(path: Path) -> None:
    values = dict(chart(path).values)
    assert findings(values) == []
    names = [[(each["kind"], each["metadata"]["name"]) for each in render(each)] for each in (values, {})]
    assert names[0] == names[1]
