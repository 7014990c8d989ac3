"""deploy/llm-d as llm-d's own charts render it: model servers that have the gauge, and a router that reads it."""

from pathlib import Path
from typing import Any

import yaml

from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from tests.deploy.chart.helm import one
from tests.deploy.chart.kinds import check
from tests.deploy.platforms.rendered import FILES, check_switch, read, rendered, vllm_arguments


def values(name: str) -> dict[str, Any]:
    [found] = read(FILES / "llm-d" / name)
    return found


def test_model_servers() -> None:
    objects = rendered("llm-d-modelservice")
    for each in objects:
        check(each, "1.35")
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    check_switch(container)
    assert container["command"] == ["vllm", "serve"]
    found = vllm_arguments(["--model", *container["args"]])
    assert (found.model, found.port, found.max_model_len) == ("Qwen/Qwen3-8B", 8000, 131072)
    assert container["ports"][0]["containerPort"] == found.port
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    # The router selects them.
    selected = values("router.yaml")["router"]["modelServers"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()


def test_the_router_reads_the_gauge() -> None:
    objects = rendered("llm-d-router")
    for each in objects:
        check(each, "1.35")
    pool = one(objects, "InferencePool")
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    [config] = [each["data"] for each in objects if each["kind"] == "ConfigMap" and "ropeswitch.yaml" in each["data"]]
    [picker] = [each for each in objects if each["kind"] == "Deployment"]
    words = [word for each in picker["spec"]["template"]["spec"]["containers"] for word in each.get("args", ())]
    assert any(word.endswith("ropeswitch.yaml") for word in words), words
    chosen = yaml.safe_load(config["ropeswitch.yaml"])
    assert (chosen["apiVersion"], chosen["kind"]) == ("llm-d.ai/v1alpha1", "EndpointPickerConfig")
    plugins = {each.get("name", each["type"]): each for each in chosen["plugins"]}
    [engine] = plugins["core-metrics-extractor"]["parameters"]["engineConfigs"]
    [gauge] = engine["customMetrics"]
    assert gauge["metricSpec"] == GAUGES["remaining_prefill_seconds"][0]
    scorer = plugins["remaining-prefill-scorer"]
    assert scorer["type"] == "endpoint-attribute-scorer"
    assert scorer["parameters"]["attributeKey"] == gauge["attributeKey"]
    assert scorer["parameters"]["algorithm"]["type"] == "linear_lower_is_better"
    [profile] = chosen["schedulingProfiles"]
    used = {each["pluginRef"] for each in profile["plugins"]}
    assert used <= set(plugins) and "remaining-prefill-scorer" in used
    [source] = chosen["dataLayer"]["sources"]
    assert source["pluginRef"] in plugins and source["extractors"] == [{"pluginRef": "core-metrics-extractor"}]


def test_the_gauges_that_the_picker_reads_of_vllm_are_vllm_s() -> None:
    """By the names in vLLM's own source."""
    from vllm.v1.metrics import loggers

    text = Path(loggers.__file__).read_text(encoding="utf-8")
    [engine] = yaml.safe_load(values("router.yaml")["router"]["epp"]["pluginsCustomConfig"]["ropeswitch.yaml"])[
        "plugins"
    ][1]["parameters"]["engineConfigs"]
    for key, name in engine.items():
        if key.endswith("Spec"):
            assert f'"{name}"' in text or f'"{name.removesuffix("_info")}"' in text, name
