"""The Jobs of load tests, for their tests."""

import argparse
from typing import Any

from ropeswitch.loadtests.client.cli import add_parser
from tests.deploy.chart.helm import Object, Values, render

KEYS = {"apiKeys": {"enabled": True, "existingSecret": "keys"}}


def jobs(values: Values) -> dict[str, Object]:
    """The Jobs of a release by workload."""
    found = [each for each in render(values) if each["kind"] == "Job"]
    return {each["metadata"]["labels"]["ropeswitch.io/workload"]: each for each in found}


def job(values: Values, workload: str = "chat") -> Object:
    """The Job of a release with one workload."""
    content: dict[str, Any] = {"workloads": [workload], **values.get("loadTest", {})}
    [found] = jobs({**values, "loadTest": content}).values()
    return found


def pod(made: Object) -> Object:
    spec: Object = made["spec"]["template"]["spec"]
    return spec


def container(made: Object) -> Object:
    [found] = pod(made)["containers"]
    assert isinstance(found, dict)
    return found


def parse(*args: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["loadtest", *args])


def parsed(made: Object) -> argparse.Namespace:
    """The arguments as the command reads them, after Kubernetes has put in its own."""
    command, *args = [arg.replace("$(JOB_NAME)", made["metadata"]["name"]) for arg in container(made)["args"]]
    assert command == "loadtest"
    return parse(*args)
