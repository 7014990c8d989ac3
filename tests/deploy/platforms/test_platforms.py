"""KServe, llm-d, the production-stack, Ray, Dynamo, SkyPilot and systemd accept our files, which turn the switch on."""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from vllm import AsyncEngineArgs
from vllm.v1.metrics import loggers

from ropeswitch.model_patches.switch.config import variables
from ropeswitch.model_patches.switch.engine_args import settings_from_key
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from tests.deploy.chart.kinds import check
from tests.deploy.platforms.files import FILES, IMAGE, check_schema, check_switch, environment, read, vllm_arguments
from tests.serve_parser import serve_parser

HF_CONFIG = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "max_position_embeddings": 40960}
HF_CONFIG |= {"model_type": "qwen3", "head_dim": 128, "num_hidden_layers": 2}
# systemd's own measure, from 0 (confined) to 10; it calls up to 4.9 "OK".
MOST_EXPOSED = 2.5
KSERVE = ("kserve/runtime.yaml", "kserve/inferenceservice.yaml", "kserve/llminferenceservice.yaml")


@pytest.mark.parametrize("path", [*KSERVE, "ray/rayservice.yaml"])
def test_the_operators_schema_accepts_it(path: str) -> None:
    check(read(path), "1.35")


def test_kserves_runtime_serves_the_services_model_with_the_switch() -> None:
    runtime, service = read("kserve", "runtime.yaml"), read("kserve", "inferenceservice.yaml")
    [container] = runtime["spec"]["containers"]
    check_switch(container)
    assert container["image"].startswith(f"{IMAGE}:") and container["name"] == "kserve-container"
    assert container["command"] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    # KServe fills in the name, and appends the service's arguments.
    found = vllm_arguments([word.replace("{{.Name}}", "qwen3-8b") for word in container["args"]] + model["args"])
    assert (found.port, found.model, found.served_model_name) == (8080, "/mnt/models", ["qwen3-8b"])
    assert all(container[probe]["httpGet"]["port"] == found.port for probe in ("readinessProbe", "startupProbe"))
    # The template's own container, whose script appends VLLM_ADDITIONAL_ARGS to `vllm serve /mnt/models`.
    [other] = read("kserve", "llminferenceservice.yaml")["spec"]["template"]["containers"]
    check_switch(other)
    assert other["name"] == "main" and "command" not in other and other["image"].startswith(IMAGE)
    vllm_arguments(["--model", "/mnt/models", *environment(other)["VLLM_ADDITIONAL_ARGS"].split()])
    # KServe sets runAsNonRoot, and Kubernetes then refuses an image whose user is root.
    assert min(each["securityContext"]["runAsUser"] for each in (container, other)) > 0


def test_llm_ds_router_reads_the_gauges_of_the_model_servers_it_selects() -> None:
    servers, router = read("llm-d", "modelservice.yaml"), read("llm-d", "router.yaml")["router"]
    [container] = servers["decode"]["containers"]
    check_switch(container)
    assert container["image"].startswith(f"{IMAGE}:")
    found = vllm_arguments(["--model", servers["modelArtifacts"]["name"], *container["args"]])
    assert found.port == container["ports"][0]["containerPort"] == servers["routing"]["servicePort"]
    assert router["modelServers"]["matchLabels"] == servers["modelArtifacts"]["labels"]
    assert router["inferencePool"]["failureMode"] == "FailOpen"
    chosen = yaml.safe_load(router["epp"]["pluginsCustomConfig"][router["epp"]["pluginsConfigFile"]])
    assert (chosen["apiVersion"], chosen["kind"]) == ("llm-d.ai/v1alpha1", "EndpointPickerConfig")
    plugins = {each.get("name", each["type"]): each for each in chosen["plugins"]}
    [engine] = plugins["core-metrics-extractor"]["parameters"]["engineConfigs"]
    [gauge] = engine["customMetrics"]
    assert gauge["metricSpec"] == GAUGES["remaining_prefill_seconds"][0]
    scorer = plugins["remaining-prefill-scorer"]
    assert scorer["type"] == "endpoint-attribute-scorer"
    assert scorer["parameters"]["attributeKey"] == gauge["attributeKey"]
    assert scorer["parameters"]["algorithm"]["type"] == "linear_lower_is_better"
    [profile], [source] = chosen["schedulingProfiles"], chosen["dataLayer"]["sources"]
    used = {each["pluginRef"] for each in [*profile["plugins"], source, *source["extractors"]]}
    assert {"remaining-prefill-scorer", "core-metrics-extractor"} <= used <= set(plugins)
    text = Path(loggers.__file__).read_text(encoding="utf-8")
    for key, name in engine.items():
        if key.endswith("Spec"):
            assert f'"{name}"' in text or f'"{name.removesuffix("_info")}"' in text, name


def test_the_production_stacks_engines_turn_the_switch_on() -> None:
    [engine] = read("production-stack", "values.yaml")["servingEngineSpec"]["modelSpec"]
    check_switch(engine)
    assert engine["repository"] == IMAGE and engine["modelURL"] == "Qwen/Qwen3-8B" and engine["requestGPU"] == 1
    assert engine["vllmConfig"] == {"enablePrefixCaching": True, "maxModelLen": 131072}


def test_ray_serve_accepts_the_application_and_vllm_its_engine() -> None:
    deploy = yaml.safe_load(read("ray", "rayservice.yaml")["spec"]["serveConfigV2"])
    check_schema(deploy, "ray-serve-deploy")
    [application] = deploy["applications"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    [config] = application["args"]["llm_configs"]
    check_schema(config, "ray-llm-config")
    arguments = config["engine_kwargs"]
    # Ray names the model itself, and refuses these.
    assert not {"model", "served_model_name"} & set(arguments)
    assert set(arguments) <= {field.name for field in fields(AsyncEngineArgs)}
    _, made = settings_from_key(arguments["additional_config"]["ropeswitch"], HF_CONFIG, arguments["max_model_len"])
    assert made.ladder.max_length == arguments["max_model_len"] == 131072


def test_dynamos_worker_turns_the_switch_on() -> None:
    """Dynamo's CRD has 1.6 MB and is not here; the fields around the pods are those of its own example for v1beta1."""
    graph = read("dynamo", "deployment.yaml")
    assert (graph["apiVersion"], graph["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    assert set(graph["spec"]) == {"components"}
    for component in graph["spec"]["components"]:
        assert set(component) == {"name", "type", "replicas", "podTemplate"}
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}}
        kubernetes_validate.validate(template | {"template": component["podTemplate"]}, "1.35", strict=True)
        [container] = component["podTemplate"]["spec"]["containers"]
        assert container["name"] == "main" and component["type"] in ("frontend", "worker")
        if component["type"] == "worker":
            assert container["command"] == ["python3", "-m", "dynamo.vllm"]
            vllm_arguments(container["args"])
            assert variables.read(environment(container)) == {"ladder": "auto"}


def test_skypilot_accepts_the_task_whose_command_serves_at_the_port_that_it_opens(tmp_path: Path) -> None:
    task = read("skypilot", "service.yaml")
    check_schema(task, "skypilot-task")
    assert task["resources"]["image_id"].startswith(f"docker:{IMAGE}:")
    (tmp_path / "ropeswitch").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (tmp_path / "ropeswitch").chmod(0o755)
    env = task["envs"] | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", task["run"]], env=env, capture_output=True, text=True, check=True)
    command, *words = done.stdout.splitlines()
    found = serve_parser().parse_args(words)
    assert (command, found.model_tag, found.max_model_len) == ("serve", "Qwen/Qwen3-8B", 131072)
    assert found.port == task["resources"]["ports"]
    assert variables.read(task["envs"]) == {"ladder": "auto"}
    assert task["service"]["readiness_probe"]["path"] == "/health/ready"


def pairs(name: str) -> dict[str, str]:
    """Return the NAME=VALUE lines of a file for systemd."""
    lines = (FILES / "systemd" / name).read_text(encoding="utf-8").splitlines()
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines if line and line[0] not in "#["}


def test_systemd_starts_the_server_with_the_files_variables() -> None:
    unit, chosen = pairs("ropeswitch.service"), pairs("ropeswitch.env")
    program, command, *words = shlex.split(unit["ExecStart"])
    assert (program, command) == ("/opt/ropeswitch/bin/ropeswitch", "serve")
    # systemd splits $NAME at blanks, and leaves an empty one out.
    words = [part for word in words for part in (chosen[word[1:]].split() if word.startswith("$") else [word])]
    flags = serve_parser().parse_args(words)
    assert (flags.model_tag, flags.max_model_len, flags.host) == ("Qwen/Qwen3-8B", 131072, "127.0.0.1")
    assert int(unit["TimeoutStopSec"]) > flags.shutdown_timeout
    assert variables.read(chosen) == {"ladder": "auto"}
    # A refused start ends with exit code 2.
    assert unit["RestartPreventExitStatus"] == "2"


@pytest.mark.full
def test_systemd_accepts_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    assert tool is not None, "systemd-analyze is missing; it comes with systemd"
    (tmp_path / "ropeswitch").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "ropeswitch").chmod(0o755)
    text = (FILES / "systemd" / "ropeswitch.service").read_text(encoding="utf-8")
    copy = tmp_path / "ropeswitch.service"
    copy.write_text(text.replace("/opt/ropeswitch/bin/ropeswitch", str(tmp_path / "ropeswitch")), encoding="utf-8")
    done = subprocess.run([tool, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([tool, "security", "--offline=true", str(copy)], capture_output=True, text=True, check=True)
    level = re.search(r"Overall exposure level for ropeswitch.service: ([\d.]+)", done.stdout)
    assert level is not None and float(level[1]) <= MOST_EXPOSED
