"""Every values file of the matrix: strict lint, Kubernetes' own schemas from 1.30 to 1.35, and the golden files."""

import pytest

from tests.deploy.chart.helm import CASES, HERE, Object, case, findings, notes, one, render
from tests.deploy.chart.kinds import check
from tests.deploy.chart.renew import GOLDEN, golden

VERSIONS = ["1.30", *(pytest.param(f"1.{minor}", marks=pytest.mark.full) for minor in range(31, 35)), "1.35"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_lint_and_schemas(name: str, version: str) -> None:
    assert findings(case(name), f"v{version}.0") == []
    objects = render(case(name), kubernetes=f"v{version}.0")
    assert objects
    for each in objects:
        check(each, version)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    expected = (HERE / "golden" / f"{name}.yaml").read_text(encoding="utf-8")
    assert golden(name) == expected, "after a change that is meant: make chart-golden"


def test_everything_has_every_kind_but_the_other_autoscaler() -> None:
    kinds = {each["kind"] for each in render(case("everything"))}
    assert kinds >= {
        *("Deployment", "LeaderWorkerSet", "Service", "ServiceAccount", "ConfigMap", "Pod", "PodDisruptionBudget"),
        *("NetworkPolicy", "Ingress", "HTTPRoute", "ServiceMonitor", "ScaledObject", "Job", "PersistentVolumeClaim"),
    }
    assert "HorizontalPodAutoscaler" not in kinds


@pytest.mark.parametrize(
    ("kind", "field"),
    [("LeaderWorkerSet", "spec"), ("ScaledObject", "spec"), ("ServiceMonitor", "spec"), ("HTTPRoute", "spec")],
)
def test_the_schemas_refuse_a_field_that_is_unknown(kind: str, field: str) -> None:
    found: Object = next(each for each in render(case("everything")) if each["kind"] == kind)
    found[field]["unknown"] = 1
    with pytest.raises(Exception, match="unknown"):
        check(found, "1.35")


def test_notes_tell_what_the_cluster_lacks() -> None:
    assert "needs" not in notes(case("everything"))
    printed = notes(case("everything"), apis=["keda.sh/v1alpha1"])
    assert "ServiceMonitor (metrics.serviceMonitor) needs monitoring.coreos.com/v1" in printed
    assert "HTTPRoute (gateway) needs gateway.networking.k8s.io/v1" in printed
    assert "ScaledObject" not in printed
    assert "LeaderWorkerSet (several nodes) needs leaderworkerset" in notes(case("two-nodes"), apis=[])


def test_every_object_has_the_labels_of_the_user() -> None:
    for each in render({**case("everything"), "extraObjects": []}):
        assert each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus", each["metadata"]["name"]


def test_the_release_without_options_is_small() -> None:
    kinds = sorted(each["kind"] for each in render({}))
    assert kinds == sorted(
        ["ConfigMap", "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount"]
    )
    assert one(render({}), "Deployment")["spec"]["replicas"] == 1
