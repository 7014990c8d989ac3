"""docs/loadtests.md, on Kubernetes."""

from typing import Any

import yaml

from tests.deploy.chart.helm import Object, Values, files, findings, one, render
from tests.deploy.chart.kinds import check
from tests.deploy.chart.loadtests import jobs, parsed
from tests.docs.pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "loadtests.md"


def block(name: str) -> Any:
    [found] = [text for text in blocks(PAGE, "yaml") if text.startswith(f"# {name}\n")]
    return yaml.safe_load(found)


def values() -> Values:
    values: Object = block("loadtest.yaml")
    values["loadTest"]["files"] = {"office.yaml": "name: office"}
    return values


def test_its_values() -> None:
    found = jobs(values())
    assert sorted(found) == ["chat", "office"] and findings(values(), "v1.35.0") == []
    assert parsed(found["chat"]).rate == (1.0, 2.0, 4.0)


def test_its_selectors() -> None:
    labels = {**jobs(values())["chat"]["spec"]["template"]["metadata"]["labels"]}
    selectors = [words[words.index("--selector") + 1] for words in commands(PAGE, "kubectl") if "--selector" in words]
    assert len(selectors) == 3
    for selector in selectors:
        assert dict(pair.split("=") for pair in selector.split(",")).items() <= labels.items()


def test_the_template_to_show_is_there() -> None:
    [helm] = [words for words in commands(PAGE, "helm") if words[0] == "template"]
    text = files(values(), release=helm[1])[helm[helm.index("--show-only") + 1]]
    kinds = [each["kind"] for each in yaml.safe_load_all(text)]
    assert kinds == ["ConfigMap", "Job", "Job"]


def test_the_pod_that_the_report_is_copied_from() -> None:
    reader = block("results.yaml")
    check(reader, "1.30")
    [claim] = [each["persistentVolumeClaim"]["claimName"] for each in reader["spec"]["volumes"]]
    texts = files(values(), release="long")
    assert yaml.safe_load(texts["templates/loadtest-claim.yaml"])["metadata"]["name"] == claim
    security = one(render({}), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    # Who may read the files that a test wrote.
    assert reader["spec"]["securityContext"]["fsGroup"] == security["fsGroup"]
