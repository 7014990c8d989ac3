"""One measurement: the automatic ladder is exact, a wrong one is seen, and so is a refusal."""

import pytest

from tests.matrix.one_model import Result, line, measure
from tests.matrix.verdicts import DIFFERS, EXACT, NO_CHECKPOINT, REFUSED

PAIRS = 16


@pytest.fixture(autouse=True)
def engine_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def sets(*ends: int) -> dict[str, object]:
    """A ladder whose sets leave every frequency as it is."""
    return {"sets": [{"name": f"to-{end}", "max_length": end, "factors": [1.0] * PAIRS} for end in ends]}


def test_the_automatic_ladder_is_exact() -> None:
    result = measure("LlamaForCausalLM")
    assert (result.verdict, result.oracle) == (EXACT, "transformers"), result
    assert result.tokens == 244 and result.cached > 300 and result.visible is not None and result.visible > 1


def test_a_wrong_ladder_differs() -> None:
    result = measure("LlamaForCausalLM", sets(64, 128, 256))
    # The first set is right, so the first wrong token comes after 64 others.
    assert result.verdict == DIFFERS and "log-probability" in result.reason, result
    assert result.error is not None and result.error > 0.1


def test_a_refusal_is_told_from_an_error() -> None:
    result = measure("LlamaForCausalLM", {"sets": [{"name": "one", "max_length": 256, "factors": [1.0]}]})
    assert (result.verdict, result.oracle) == (REFUSED, ""), result
    assert "each set has 1 factors" in result.reason and "off transformers" in result.stock


def test_an_architecture_without_a_class_has_no_checkpoint() -> None:
    result = measure("KimiVLForConditionalGeneration")
    assert result.verdict == NO_CHECKPOINT and "no class" in result.reason
    assert set(line(result)) == {"architecture", "kind", "verdict", "reason", "tokens", "cached", "seconds"}


@pytest.mark.full
@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "PhiMoEForCausalLM"])
def test_a_mechanism_is_exact(name: str) -> None:
    result: Result = measure(name)
    assert result.verdict == EXACT, result
