"""One measurement: the automatic ladder is exact, a wrong one is seen, and so is a refusal."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.verdicts import DIFFERS, EXACT, NO_CHECKPOINT, REFUSED

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 16
# Made-up models change vLLM where they are imported, so each measurement has a process of its own.
CODE = """
import json, sys
from dataclasses import asdict
from tests.matrix.one_model import line, measure
from tests.matrix.recipes import RECIPES
name, ladder, with_recipe = json.loads(sys.argv[1])
if not with_recipe:
    del RECIPES[name]
result = measure(name, ladder)
print("result", json.dumps(asdict(result) | {"line": line(result)}), flush=True)
"""


def measured(name: str, ladder: Mapping[str, Any] | None = None, *, with_recipe: bool = True) -> dict[str, Any]:
    """The result on one architecture, as if it had no recipe where ``with_recipe`` is false."""
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, "-c", CODE, json.dumps([name, ladder, with_recipe])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [text for text in done.stdout.splitlines() if text.startswith("result ")]
    assert len(lines) == 1, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    return found


def sets(*ends: int) -> dict[str, object]:
    """A ladder whose sets leave every frequency as it is."""
    return {"sets": [{"name": f"to-{end}", "max_length": end, "factors": [1.0] * PAIRS} for end in ends]}


@pytest.mark.full
def test_the_automatic_ladder_is_exact() -> None:
    result = measured("LlamaForCausalLM")
    assert (result["verdict"], result["oracle"]) == (EXACT, "transformers"), result
    assert (
        result["tokens"] == 244 and result["cached"] > 300 and result["visible"] is not None and result["visible"] > 1
    )


@pytest.mark.full
def test_a_wrong_ladder_differs() -> None:
    result = measured("LlamaForCausalLM", sets(64, 128, 256))
    # The first set is right, so the first wrong token comes after 64 others.
    assert result["verdict"] == DIFFERS and "log-probability" in result["reason"], result
    assert result["error"] is not None and result["error"] > 0.1


@pytest.mark.full
def test_a_refusal_is_told_from_an_error() -> None:
    result = measured("LlamaForCausalLM", {"sets": [{"name": "one", "max_length": 256, "factors": [1.0]}]})
    assert (result["verdict"], result["oracle"]) == (REFUSED, ""), result
    assert "each set has 1 factors" in result["reason"] and "off transformers" in result["stock"]


@pytest.mark.full
def test_a_model_that_stock_vllm_does_not_run_is_refused_all_the_same() -> None:
    result = measured("DeepseekV32ForCausalLM")
    assert result["verdict"] == REFUSED and result["reason"].startswith("index_topk: "), result
    assert result["stock"] == "stops: Sparse Attention is not supported on CPU."


@pytest.mark.full
def test_an_architecture_without_a_class_has_no_checkpoint() -> None:
    result = measured("InternVLChatModel", with_recipe=False)
    assert result["verdict"] == NO_CHECKPOINT and "no class" in result["reason"]
    assert set(result["line"]) == {"architecture", "kind", "verdict", "reason", "tokens", "cached", "seconds"}


@pytest.mark.full
@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "PhiMoEForCausalLM", "GLM4VForCausalLM"])
def test_a_mechanism_is_exact(name: str) -> None:
    result = measured(name)
    assert result["verdict"] == EXACT, result
