"""deploy/ray against the schemas of KubeRay and Ray Serve, and the engine's arguments against vLLM."""

from dataclasses import fields
from typing import Any

import jsonschema
import pytest
import yaml

from ropeswitch.model_patches.switch.engine_args import settings_from_key
from tests.deploy.chart.kinds import check
from tests.deploy.platforms.rendered import FILES, read
from tests.deploy.platforms.schemas import check_schema

HF_CONFIG = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "max_position_embeddings": 40960}
HF_CONFIG |= {"model_type": "qwen3", "head_dim": 128, "num_hidden_layers": 2}


def service() -> dict[str, Any]:
    [found] = read(FILES / "ray" / "rayservice.yaml")
    return found


def test_the_crd_takes_it() -> None:
    each = service()
    check(each, "1.35")
    each["spec"]["rayClusterConfig"]["workers"] = []
    with pytest.raises(jsonschema.ValidationError, match="workers"):
        check(each, "1.35")


def test_ray_serve_takes_the_application_and_vllm_its_engine() -> None:
    from vllm import AsyncEngineArgs

    deploy = yaml.safe_load(service()["spec"]["serveConfigV2"])
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
