"""deploy/kserve against KServe's CRDs, and the containers that it runs."""

import jsonschema
import pytest

from tests.deploy.chart.kinds import check
from tests.deploy.platforms.rendered import FILES, IMAGE, check_switch, environment, read, vllm_arguments

NAMES = ("runtime", "inferenceservice", "llminferenceservice")


@pytest.mark.parametrize("name", NAMES)
def test_the_crds_take_it(name: str) -> None:
    [each] = read(FILES / "kserve" / f"{name}.yaml")
    check(each, "1.35")
    each["spec"]["unknown"] = 1
    with pytest.raises(jsonschema.ValidationError, match="unknown"):
        check(each, "1.35")


def test_the_runtime_turns_the_switch_on() -> None:
    [runtime] = read(FILES / "kserve" / "runtime.yaml")
    [service] = read(FILES / "kserve" / "inferenceservice.yaml")
    [container] = runtime["spec"]["containers"]
    check_switch(container)
    assert container["name"] == "kserve-container"
    assert container["command"] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"]["name"] in formats
    # KServe fills in the name, and appends the service's arguments.
    words = [word.replace("{{.Name}}", "qwen3-8b") for word in container["args"]] + model["args"]
    found = vllm_arguments(words)
    assert (found.port, found.model, found.served_model_name) == (8080, "/mnt/models", ["qwen3-8b"])
    assert found.max_model_len == 131072
    for probe in ("readinessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["port"] == found.port
    assert container["securityContext"]["runAsUser"] > 0


def test_the_llm_service_changes_the_image_of_kserve_s_template() -> None:
    [service] = read(FILES / "kserve" / "llminferenceservice.yaml")
    [container] = service["spec"]["template"]["containers"]
    check_switch(container)
    # The template's own container, whose script appends VLLM_ADDITIONAL_ARGS to `vllm serve /mnt/models`.
    assert container["name"] == "main" and "command" not in container
    extra = environment(container)["VLLM_ADDITIONAL_ARGS"].split()
    assert vllm_arguments(["--model", "/mnt/models", *extra]).max_model_len == 131072
    # The template has runAsNonRoot, and Kubernetes then refuses an image whose user is root.
    assert container["securityContext"]["runAsUser"] > 0
    assert container["image"].startswith(IMAGE)
