"""docs/deploy.md: its table is the planner's, its values make what it says, and the values that it names are there."""

import json
import re
from pathlib import Path

import pytest
import yaml

from ropeswitch.deploy.plan import gpus
from ropeswitch.deploy.plan.costs import GIB, Workload
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.server.cli import main
from tests.deploy.chart.helm import pod, render
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B, PHI4_MINI, QWEN2_5_7B, QWEN3_8B
from tests.docs.pages import ROOT, blocks, commands

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


MODELS = {"Phi-4-mini": PHI4_MINI, "Mistral-7B": MISTRAL_7B, "Qwen2.5-7B": QWEN2_5_7B, "LLaMA2-7B": LLAMA2_7B}
ROWS = re.findall(rf"^\| ({'|'.join(MODELS)}) \| ([\d,]+) \| (.*) \|$", PAGE, re.MULTILINE)


def test_the_table_has_each_model_at_each_length() -> None:
    assert [row[:2] for row in ROWS] == [(name, f"{1 << power:,}") for name in MODELS for power in (17, 19, 20, 21)]


@pytest.mark.parametrize(("name", "length", "row"), ROWS)
def test_the_table_is_the_planners(name: str, length: str, row: str) -> None:
    """The fewest GPUs that hold a sequence of that length, and the layout recommended for them."""
    # As it is served here: with factors that reach the length, and without a window that forgets.
    shape, load = shape_from_config(name, MODELS[name] | {"sliding_window": None}), int(length.replace(",", ""))
    clusters = (Cluster(gpus.load()["A100-80GB"], 1 << power, 8, 1) for power in range(7))
    plans = ((each.gpus, make_plan(shape, each, Workload(load, 2, 0.9, 3.0)).recommended) for each in clusters)
    count, best = next((count, best) for count, best in plans if best is not None)
    sizes = {"TP": best.layout.tensor, "DCP": best.layout.decode_context, "PP": best.layout.pipeline}
    layout = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    layout += f"; {best.placement.nodes} nodes" if best.placement.nodes > 1 else ""
    kv = best.memory.kv_per_sequence * best.layout.gpus / GIB
    assert row == f"{kv:.0f} GiB | {count} | {layout} | {best.bounds.first_token:.0f} s | {best.sequences}"


def test_the_pages_values_install_what_the_page_says() -> None:
    [block] = re.findall(r"```yaml\n# values.yaml\n(.*?)```", PAGE, re.DOTALL)
    kinds = {
        each["kind"] for each in render(yaml.safe_load(block) | {"model": "llama2-7b", "factors": {"content": "{}"}})
    }
    assert {*"Ingress ServiceMonitor PrometheusRule ConfigMap PodDisruptionBudget".split()} <= kinds


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
