"""The platforms' own charts, rendered by the real Helm engine with the values of `deploy/`, and what their containers run.

The charts themselves are not here. `make docs-platforms CHARTS=FOLDER` renders them from a folder with checkouts of the
releases in :data:`CHARTS`, and keeps what they made of our values under `golden/`, with a hash of the values: run it again
when the values change.
"""

import argparse
import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ropeswitch.model_patches.switch.config import variables
from tests.deploy.chart.helm import Object, render
from tests.docs.pages import ROOT
from tests.serve_parser import serve_parser

FILES = ROOT / "deploy"
GOLDEN = Path(__file__).parent / "golden"
IMAGE = "ghcr.io/ropeswitch/ropeswitch"
APIS = ("inference.networking.k8s.io/v1", "llm-d.ai/v1alpha2", "monitoring.coreos.com/v1")
# By the name of the golden file: our values, the release, and the chart's folder in its repository's checkout.
CHARTS = {
    "llm-d-modelservice": (
        "llm-d/modelservice.yaml",
        "llm-d-incubation/llm-d-modelservice llm-d-modelservice-v0.4.12",
        "llm-d-modelservice/charts/llm-d-modelservice",
    ),
    "llm-d-router": (
        "llm-d/router.yaml",
        "llm-d/llm-d-router v0.10.0",
        "llm-d-router/config/charts/llm-d-router-gateway",
    ),
    "vllm-stack": (
        "production-stack/values.yaml",
        "vllm-project/production-stack vllm-stack-0.1.12",
        "production-stack/helm",
    ),
}
# A chart that its own repository lays beside another one, as its dependency.
BESIDE = {"llm-d-router": "../routerlib"}


def read(path: Path) -> list[Object]:
    """Every object of a YAML file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def digest(name: str) -> str:
    """A hash of the values that a golden file was rendered from."""
    values, release, _ = CHARTS[name]
    return hashlib.sha256((FILES / values).read_bytes() + release.encode()).hexdigest()


def rendered(name: str) -> list[Object]:
    """What a platform's chart made of our values.

    Raises:
        AssertionError: when the values have changed since.
    """
    head, *objects = read(GOLDEN / f"{name}.yaml")
    assert head == {"values": digest(name)}, f"{CHARTS[name][0]} has changed: make docs-platforms CHARTS=FOLDER"
    return objects


def write(charts: Path) -> None:
    """Render every chart and write the golden files."""
    for name, (values, release, path) in CHARTS.items():
        with TemporaryDirectory() as scratch:
            folder = Path(scratch, name)
            shutil.copytree(charts / path, folder)
            if name in BESIDE:
                shutil.copytree(charts / path / BESIDE[name], folder / "charts" / Path(BESIDE[name]).name)
            objects = render(read(FILES / values)[0], apis=APIS, release="qwen3", folder=folder)
        head = f"# Made by {release} of deploy/{values}.\n"
        text = yaml.safe_dump_all([{"values": digest(name)}, *objects], sort_keys=False, width=120)
        (GOLDEN / f"{name}.yaml").write_text(head + text, encoding="utf-8")


def environment(container: Object) -> dict[str, str]:
    """The container's own variables that have a value."""
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def check_switch(container: Object) -> None:
    """Check that a container runs our image with the switch on, and with the routes and gauges of plain vLLM."""
    own = environment(container)
    assert container["image"].startswith(f"{IMAGE}:")
    assert variables.read(own) == {"ladder": "auto"}
    assert own["VLLM_PLUGINS"].split(",") == ["ropeswitch", "ropeswitch_refusals"]


def vllm_arguments(words: list[str]) -> Any:
    """The arguments after `vllm serve`, parsed by vLLM.

    Raises:
        UsageError: for what vLLM would refuse.
    """
    return serve_parser(ours=False).parse_args(words)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Render the platforms' charts with the values of deploy/.")
    parser.add_argument("charts", type=Path, help="folder with a checkout of each repository")
    write(parser.parse_args().charts)
