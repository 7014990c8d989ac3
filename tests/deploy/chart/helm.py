"""The chart as the real Helm engine sees it."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from helm_python import Chart, _native, lint

Values: TypeAlias = Mapping[str, Any]
Object: TypeAlias = dict[str, Any]
HERE = Path(__file__).parent
CHART = HERE.parents[2] / "deploy" / "helm" / "ropeswitch"
CASES = sorted(path.stem for path in (HERE / "values").glob("*.yaml"))
OPTIONAL_APIS = (
    "gateway.networking.k8s.io/v1",
    "inference.networking.k8s.io/v1",
    "keda.sh/v1alpha1",
    "leaderworkerset.x-k8s.io/v1",
    "llm-d.ai/v1alpha2",
    "monitoring.coreos.com/v1",
)


@cache
def chart(folder: Path = CHART) -> Chart:
    return Chart.load(folder)


def case(name: str) -> Values:
    """The values of one file of the matrix."""
    text = (HERE / "values" / f"{name}.yaml").read_text(encoding="utf-8")
    values: Values = yaml.safe_load(text) or {}
    return values


def files(
    values: Values,
    *,
    apis: Sequence[str] = OPTIONAL_APIS,
    kubernetes: str = "v1.35.0",
    release: str = "demo",
    folder: Path = CHART,
) -> dict[str, str]:
    """Render a release in the namespace `llm`.

    Args:
        values: What a user gives.
        apis: API versions that the cluster has beside Kubernetes' own.
        kubernetes: The cluster's version.
        release: Its name.
        folder: The chart's.

    Returns:
        The rendered text by template, without those that came out empty.

    Raises:
        HelmError: when the chart refuses the values.
    """
    return dict(_files(json.dumps(values), tuple(apis), kubernetes, release, folder))


@cache
def _files(values: str, apis: tuple[str, ...], kubernetes: str, release: str, folder: Path) -> dict[str, str]:
    # `Chart.render` has no argument for the cluster's versions, but the engine below it takes them.
    options = {"name": release, "namespace": "llm", "api_versions": apis, "kube_version": kubernetes}
    rendered = _native.call_string("helm_render", chart(folder)._raw(), values, json.dumps(options))
    texts: dict[str, str] = json.loads(rendered)
    return {name.partition("/")[2]: text for name, text in texts.items() if text.strip()}


def render(values: Values, **options: Any) -> list[Object]:
    """Every object that the values make, with the options of :func:`files`."""
    texts = [text for name, text in sorted(files(values, **options).items()) if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def notes(values: Values, *, apis: Sequence[str] = OPTIONAL_APIS) -> str:
    """What the user is told after an installation."""
    return files(values, apis=apis)["templates/NOTES.txt"]


def one(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or that of a name."""
    [found] = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found


def pods(objects: Sequence[Object]) -> dict[str, Object]:
    """Specs of all pods, by what they are: NAME of a Deployment, NAME/leader and NAME/worker of a group, NAME/job of a job,
    NAME of a pod."""
    specs: dict[str, Object] = {}
    for each in objects:
        name = each["metadata"]["name"]
        if each["kind"] == "Deployment":
            specs[name] = each["spec"]["template"]["spec"]
        elif each["kind"] == "LeaderWorkerSet":
            template = each["spec"]["leaderWorkerTemplate"]
            specs[f"{name}/leader"] = template["leaderTemplate"]["spec"]
            specs[f"{name}/worker"] = template["workerTemplate"]["spec"]
        elif each["kind"] == "Job":
            specs[f"{name}/job"] = each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            specs[name] = each["spec"]
    return specs


def pod_of(values: Values, name: str = "demo-ropeswitch") -> Object:
    """The spec of one pod, by default that of a release of one node and one pool."""
    return pods(render(values))[name]


def findings(values: Values, kubernetes: str, folder: Path = CHART) -> list[str]:
    """What a strict `helm lint` has to say; empty when all is well."""
    report = lint(folder, dict(values), strict=True, kube_version=kubernetes)
    return [str(each["error"]) for each in report["messages"] if each["severity"] > 1] + report["errors"]
