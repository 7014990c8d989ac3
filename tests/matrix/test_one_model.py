"""One measurement: the automatic ladder is exact, a wrong one is seen, and so is a refusal."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.matrix.verdicts import DIFFERS, EXACT, NO_CHECKPOINT, REFUSED

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 16
# Made-up models change vLLM where they are imported, so each measurement has a process of its own, forked as in run.py.
CODE = """
import json, os, sys
from dataclasses import asdict
from tests.matrix.run import ENVIRONMENT
os.environ.update(ENVIRONMENT)
errors = os.dup(2)
import tests.matrix.preload
from tests.matrix.one_model import line, measure
from tests.matrix.recipes import RECIPES
for text in sys.stdin:
    if os.fork() != 0:
        os.wait()
        print("ended", flush=True)
        continue
    os.dup2(errors, 2)
    name, ladder, with_recipe = json.loads(text)
    if not with_recipe:
        del RECIPES[name]
    result = measure(name, ladder)
    print("result", json.dumps(asdict(result) | {"line": line(result)}), flush=True)
    os._exit(0)
"""
Measured = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    """Gives the result on an architecture, as if it had no recipe where ``with_recipe`` is false."""
    command = [sys.executable, "-c", CODE]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        questions, answers = process.stdin, process.stdout
        assert questions is not None and answers is not None

        def measure(name: str, ladder: dict[str, Any] | None = None, *, with_recipe: bool = True) -> dict[str, Any]:
            print(json.dumps([name, ladder, with_recipe]), file=questions, flush=True)
            return result(answers)

        yield measure


def result(answers: IO[str]) -> dict[str, Any]:
    found = []
    for text in answers:
        if text == "ended\n":
            break
        if text.startswith("result "):
            found.append(text.removeprefix("result "))
    assert len(found) == 1, "no result; the process's error is above"
    values: dict[str, Any] = json.loads(found[0])
    return values


def sets(*ends: int) -> dict[str, Any]:
    """A ladder whose sets leave every frequency as it is."""
    return {"sets": [{"name": f"to-{end}", "max_length": end, "factors": [1.0] * PAIRS} for end in ends]}


def test_the_automatic_ladder_is_exact(measured: Measured) -> None:
    result = measured("LlamaForCausalLM")
    assert (result["verdict"], result["oracle"]) == (EXACT, "transformers"), result
    assert (
        result["tokens"] == 244 and result["cached"] > 300 and result["visible"] is not None and result["visible"] > 1
    )


def test_a_wrong_ladder_differs(measured: Measured) -> None:
    result = measured("LlamaForCausalLM", sets(64, 128, 256))
    # The first set is right, so the first wrong token comes after 64 others.
    assert result["verdict"] == DIFFERS and "log-probability" in result["reason"], result
    assert result["error"] is not None and result["error"] > 0.1


def test_a_refusal_is_told_from_an_error(measured: Measured) -> None:
    result = measured("LlamaForCausalLM", {"sets": [{"name": "one", "max_length": 256, "factors": [1.0]}]})
    assert (result["verdict"], result["oracle"]) == (REFUSED, ""), result
    assert "each set has 1 factors" in result["reason"] and "off transformers" in result["stock"]


def test_a_model_that_stock_vllm_does_not_run_is_refused_all_the_same(measured: Measured) -> None:
    result = measured("DeepseekV32ForCausalLM")
    assert result["verdict"] == REFUSED and result["reason"].startswith("index_topk: "), result
    assert result["stock"] == "stops: Sparse Attention is not supported on CPU."


def test_an_architecture_without_a_class_has_no_checkpoint(measured: Measured) -> None:
    result = measured("InternVLChatModel", with_recipe=False)
    assert result["verdict"] == NO_CHECKPOINT and "no class" in result["reason"]
    assert set(result["line"]) == {"architecture", "kind", "verdict", "reason", "tokens", "cached", "seconds"}


@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "PhiMoEForCausalLM", "GLM4VForCausalLM"])
def test_a_mechanism_is_exact(measured: Measured, name: str) -> None:
    result = measured(name)
    assert result["verdict"] == EXACT, result
