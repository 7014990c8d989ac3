"""docs/models.md: whether a model works is what was measured, for each architecture of vLLM's registry."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ropeswitch.model_patches.switch.releases import RELEASES, release
from tests.docs.made import written
from tests.docs.pages import ROOT
from tests.matrix import page
from tests.matrix.recipe import RECIPES, rotating
from tests.matrix.results import DIFFERS, EXACT, REFUSED, VERDICTS, Line, file_of, read
from tests.matrix.run import Processes, fill

PAIRS = 16
TEXT = (ROOT / page.PAGE).read_text(encoding="utf-8")
RESULTS = {each: read(ROOT / file_of(each)) for each in RELEASES}


@pytest.fixture(scope="module")
def measured() -> Processes:
    return Processes(limit=500)


def sets(*ends: int, factors: int = PAIRS) -> dict[str, Any]:
    """A ladder whose sets leave every frequency as it is."""
    return {"sets": [{"name": f"to-{end}", "max_length": end, "factors": [1.0] * factors} for end in ends]}


@pytest.mark.full
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma3ForCausalLM", "PhiMoEForCausalLM", "GLM4VForCausalLM"])
def test_the_automatic_ladder_is_exact(measured: Processes, name: str) -> None:
    """Each way to compare: with transformers, with its layers of two kinds, with stock, and with forced frequencies."""
    result = measured(name)
    assert result["verdict"] == EXACT and result["tokens"] == 244 and result["cached"] > 300, result


@pytest.mark.full
@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="vLLM has fp8 keys and values on CPUs with AVX-512")
@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e5m2"])
def test_keys_and_values_of_eight_bits_are_stock_vllms_with_the_set_static(measured: Processes, kind: str) -> None:
    result = measured("LlamaForCausalLM", engine={"kv_cache_dtype": kind})
    assert result["verdict"] == EXACT and result["oracle"].startswith("stock") and result["cached"] > 300, result


@pytest.mark.full
def test_a_wrong_ladder_differs(measured: Processes) -> None:
    result = measured("LlamaForCausalLM", ladder=sets(64, 128, 256))
    assert result["verdict"] == DIFFERS and result["error"] > 0.1 and result["reason"].startswith("token "), result


@pytest.mark.full
def test_a_refusal_says_what_stock_vllm_does(measured: Processes) -> None:
    result = measured("LlamaForCausalLM", ladder=sets(256, factors=1))
    assert result["verdict"] == REFUSED and "oracle" not in result, result
    assert "each set has 1 factors" in result["reason"] and "off transformers" in result["stock"]
    assert measured("HYV4ForCausalLM")["reason"].startswith("RuntimeError: HYV4 sparse attention was requested")
    result = measured("DeepseekV32ForCausalLM")
    assert (result["verdict"], result["reason"]) == ("not on CPU", "Sparse Attention is not supported on CPU."), result


def test_the_page_shows_the_results() -> None:
    assert written(TEXT, "docs-models", page.tables(RESULTS)) == TEXT


def test_every_result_says_what_was_compared_or_why_not() -> None:
    for name, line in ((name, line) for found in RESULTS.values() for name, line in found.items()):
        assert line["verdict"] in VERDICTS, name
        if line["verdict"] == EXACT:
            assert line["oracle"] and line["error"] < 1e-3 and line["visible"] > 0.02, name
        else:
            assert line["reason"], name


def test_every_kernel_of_a_recipe_exists() -> None:
    kernels = {path.stem for path in (ROOT / "tests/matrix/kernels").glob("[a-z]*.py")}
    assert {name for recipe in RECIPES.values() for name in recipe.replaced} == kernels


def test_every_architecture_has_a_result() -> None:
    assert set(RESULTS[release()]) == set(rotating())
    assert set(RECIPES) <= {name for found in RESULTS.values() for name in found}


def test_an_interrupted_run_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, asked = tmp_path / "results" / "matrix.jsonl", []

    def measure(name: str) -> Line:
        asked.append(name)
        if name == "B" and asked.count("B") == 1:
            raise KeyboardInterrupt
        if name == "D":
            raise TimeoutError("D: not finished after 300 s; raise --limit")
        return {"architecture": name, "verdict": "exact", "seconds": 1.0}

    with pytest.raises(KeyboardInterrupt):
        fill(results, ["C", "B", "A"], measure)
    assert list(read(results)) == ["C"]
    fill(results, ["A", "B", "D"], measure)
    assert list(read(results)) == ["A", "B", "C"]
    assert "docs-models: 2 of 3: B: exact (1 s)\ndocs-models: 3 of 3: D: not finished" in capsys.readouterr().out
