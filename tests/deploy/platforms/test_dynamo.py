"""deploy/dynamo: pods that Kubernetes takes, in the fields of Dynamo's published graph of one worker.

Dynamo's CRD has 1.6 MB and is not here; the fields around the pods are those of its own example for v1beta1.
"""

import kubernetes_validate

from ropeswitch.model_patches.switch.config import variables
from tests.deploy.platforms.rendered import FILES, environment, read, vllm_arguments

COMPONENT = {"name", "type", "replicas", "podTemplate"}


def test_the_graph() -> None:
    [graph] = read(FILES / "dynamo" / "deployment.yaml")
    assert (graph["apiVersion"], graph["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    assert set(graph["spec"]) == {"components"}
    for component in graph["spec"]["components"]:
        assert set(component) == COMPONENT and component["type"] in ("frontend", "worker")
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}}
        kubernetes_validate.validate(template | {"template": component["podTemplate"]}, "1.35", strict=True)
        [container] = component["podTemplate"]["spec"]["containers"]
        assert container["name"] == "main"


def test_its_worker_turns_the_switch_on() -> None:
    [graph] = read(FILES / "dynamo" / "deployment.yaml")
    [worker] = [each for each in graph["spec"]["components"] if each["type"] == "worker"]
    [container] = worker["podTemplate"]["spec"]["containers"]
    assert container["command"] == ["python3", "-m", "dynamo.vllm"]
    assert vllm_arguments(container["args"]).max_model_len == 131072
    assert variables.read(environment(container)) == {"ladder": "auto"}
