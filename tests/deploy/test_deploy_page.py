"""docs/deploy.md: its table is the planner's, its values make what it says, and the values that it names are there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.serve_flags import Serving, helm_values
from ropeswitch.factors.ladders.choice import from_flags
from ropeswitch.server.cli import main
from tests.deploy import sizing
from tests.deploy.chart.helm import CHART, pod, render
from tests.deploy.configs import LLAMA2_7B, QWEN3_8B
from tests.docs.made import written
from tests.docs.pages import ROOT, blocks, commands

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_the_table_is_the_planners() -> None:
    assert written(PAGE, "docs-sizing", sizing.TABLES) == PAGE and "| LLaMA2-7B | 2,097,152 | 1024 GiB | 16 |" in PAGE


def test_the_pages_values_install_with_what_the_page_plans() -> None:
    shape = shape_from_config("llama2-7b", LLAMA2_7B)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 16, 8, 1), Workload(2097152, 2, 0.9, 3.0))
    assert plan.recommended is not None
    serving = Serving("llama2-7b", 2097152, 0.9, "auto", from_flags(None, "factors.json"))
    [block] = re.findall(r"```yaml\n# values.yaml\n(.*?)```", PAGE, re.DOTALL)
    values = helm_values(serving, shape, plan.recommended) | yaml.safe_load(block) | {"factors": {"content": "{}"}}
    kinds = {each["kind"] for each in render(values)}
    assert {
        "LeaderWorkerSet",
        "Ingress",
        "ServiceMonitor",
        "PrometheusRule",
        "ConfigMap",
        "PodDisruptionBudget",
    } <= kinds


def test_a_model_without_factors_is_planned_and_installed_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [words] = [words for words in commands(ROOT / "docs" / "deploy.md", "ropeswitch") if "Qwen/Qwen3-8B" in words]
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    (tmp_path / "Qwen" / "Qwen3-8B" / "config.json").write_text(json.dumps(QWEN3_8B))
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    [shown] = blocks(ROOT / "docs" / "deploy.md", "text")
    assert f"\n\n{shown}\n" in capsys.readouterr().out
    [server] = pod(yaml.safe_load(Path("qwen3.yaml").read_text()))["containers"]
    assert server["args"][:4] == ["serve", "Qwen/Qwen3-8B", "--max-model-len", "131072"]
    assert not {"--factors", "--ladder"} & set(server["args"])


def test_every_value_that_the_page_names_exists() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    [table] = re.findall(r"## What each value costs\n\n(.*?)\n\n", PAGE, re.DOTALL)
    named = re.findall(r"`([a-zA-Z.]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))
    parent = ""
    for name in named:
        # `pipeline` stands beside `parallelism.tensor`.
        path = name if name.split(".")[0] in values else f"{parent}.{name}"
        at: Any = values
        for part in path.split("."):
            assert part in at, path
            at = at[part]
        parent = path.rpartition(".")[0]
    assert len(named) > 10
