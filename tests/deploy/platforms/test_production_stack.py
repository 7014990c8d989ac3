"""deploy/production-stack as rendered by the production-stack's own chart."""

from tests.deploy.chart.kinds import check
from tests.deploy.platforms.rendered import check_switch, environment, rendered, vllm_arguments


def test_its_engines_turn_the_switch_on() -> None:
    objects = rendered("vllm-stack")
    for each in objects:
        check(each, "1.35")
    [engine] = [
        each
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "qwen3-qwen3-8b-deployment-vllm"
    ]
    [container] = engine["spec"]["template"]["spec"]["containers"]
    check_switch(container)
    assert container["command"][:2] == ["vllm", "serve"]
    found = vllm_arguments(["--model", *container["command"][2:], *container.get("args", ())])
    assert (found.model, found.port, found.max_model_len) == ("Qwen/Qwen3-8B", 8000, 131072)
    assert found.enable_prefix_caching
    assert environment(container)["HF_HOME"] == "/tmp"
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/health"
