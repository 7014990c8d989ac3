"""The ready-made files of `deploy/`, and what their containers run."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from ropeswitch.model_patches.switch.config import variables
from tests.deploy.chart.helm import Object
from tests.docs.pages import ROOT
from tests.serve_parser import serve_parser

FILES = ROOT / "deploy"
IMAGE = "ghcr.io/ropeswitch/ropeswitch"


def read(*path: str) -> Any:
    """Return the only object of a YAML file of ``deploy/``."""
    [found] = [each for each in yaml.safe_load_all(FILES.joinpath(*path).read_text(encoding="utf-8")) if each]
    return found


def check_schema(value: Any, name: str) -> None:
    """Check a value against a schema of ``schemas/``, each of which names its source and its licence.

    Raises:
        jsonschema.ValidationError: when the platform would refuse it.
    """
    schema = json.loads((Path(__file__).parent / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.validate(value, schema)


def environment(container: Object) -> dict[str, str]:
    """Return the container's own variables that have a value."""
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def check_switch(container: Object) -> None:
    """Check that a container turns the switch on, with the routes and gauges of plain vLLM."""
    own = environment(container)
    assert variables.read(own) == {"ladder": "auto"}
    assert own["VLLM_PLUGINS"].split(",") == ["ropeswitch"]


def vllm_arguments(words: list[str]) -> Any:
    """Return the arguments after `vllm serve`, parsed by vLLM; a UsageError is what vLLM would refuse."""
    found = serve_parser(ours=False).parse_args(words)
    assert found.max_model_len == 131072
    return found
