"""The chart as the real Helm engine renders it."""

import json
from collections.abc import Iterator, Mapping, Sequence
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
def chart(path: Path = CHART) -> Chart:
    """Return the chart in a folder or archive."""
    return Chart.load(path)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def case(name: str) -> Values:
    """Return the values of one file of the matrix."""
    values: Values = read(HERE / "values" / f"{name}.yaml") or {}
    return values


def files(
    values: Values, *, apis: Sequence[str] = OPTIONAL_APIS, kubernetes: str = "v1.35.0", release: str = "demo",
    path: Path = CHART,
) -> dict[str, str]:  # fmt: skip
    """Return the rendered text of each template that is not empty.

    Raises:
        HelmError: for values that the chart refuses.
    """
    return dict(_files(json.dumps(values), tuple(apis), kubernetes, release, path))


@cache
def _files(values: str, apis: tuple[str, ...], kubernetes: str, release: str, path: Path) -> dict[str, str]:
    # `Chart.render` has no argument for the cluster's versions, but the engine below it takes them.
    options = {"name": release, "namespace": "llm", "api_versions": apis, "kube_version": kubernetes}
    rendered = _native.call_string("helm_render", chart(path)._raw(), values, json.dumps(options))
    texts: dict[str, str] = json.loads(rendered)
    return {name.partition("/")[2]: text for name, text in texts.items() if text.strip()}


def render(values: Values, **options: Any) -> list[Object]:
    """Return every rendered object; options as of :func:`files`."""
    texts = [text for name, text in sorted(files(values, **options).items()) if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def notes(values: Values, *, apis: Sequence[str] = OPTIONAL_APIS) -> str:
    """Return the text that Helm prints after an installation."""
    return files(values, apis=apis)["templates/NOTES.txt"]


def one(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """Return the only object of a kind, or the one of that name."""
    [found] = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found


def templates(objects: Sequence[Object]) -> Iterator[tuple[str, str, Object]]:
    """Yield the workload's name, the component (server, worker, loadtest, test) and the template of every pod."""
    for each in objects:
        name, spec = each["metadata"]["name"], each.get("spec", {})
        if each["kind"] == "Deployment":
            yield name, "server", spec["template"]
        elif each["kind"] == "LeaderWorkerSet":
            yield name, "server", spec["leaderWorkerTemplate"]["leaderTemplate"]
            yield name, "worker", spec["leaderWorkerTemplate"]["workerTemplate"]
        elif each["kind"] == "Job":
            yield name, "loadtest", spec["template"]
        elif each["kind"] == "Pod":
            yield name, "test", each


def pod(values: Values, component: str = "server", pool: str = "main") -> Object:
    """Return the spec of a release's only pod of a component, or of its pool's."""
    ends = {"main": "ropeswitch", "long": "ropeswitch-long"}[pool]
    [found] = [
        template["spec"]
        for name, kind, template in templates(render(values))
        if kind == component and (kind not in ("server", "worker") or name.endswith(ends))
    ]
    assert isinstance(found, dict)
    return found


def containers(spec: Object) -> list[Object]:
    return [*spec["containers"], *spec.get("initContainers", [])]


def findings(values: Values, kubernetes: str = "v1.35.0", folder: Path = CHART) -> list[str]:
    """Return the warnings and errors of a strict ``helm lint``."""
    report = lint(folder, dict(values), strict=True, kube_version=kubernetes)
    return [str(each["error"]) for each in report["messages"] if each["severity"] > 1] + report["errors"]


def contains(found: Any, wanted: Any) -> bool:
    """Whether a rendered part has what is wanted; expected.yaml describes the form."""
    if wanted is None:
        return True
    if isinstance(wanted, dict):
        if "count" in wanted:
            return len(found) == wanted["count"]
        if "exactly" in wanted:
            return contains(found, wanted["exactly"]) and len(found) == len(wanted["exactly"])
        return isinstance(found, dict) and all(key in found and contains(found[key], wanted[key]) for key in wanted)
    if not isinstance(wanted, list):
        return bool(found == wanted)
    if all(isinstance(each, str) for each in wanted):
        rest = iter(found) if isinstance(found, list) else found
        return all(text in rest for text in wanted)
    return all(any(contains(each, item) for each in found) for item in wanted)
