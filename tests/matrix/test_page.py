"""docs/models.md shows the results, and has one for each architecture of vLLM's registry."""

from tests.docs.pages import ROOT
from tests.matrix import page
from tests.matrix.recipes import architectures, rotating
from tests.matrix.run import RESULTS, read
from tests.matrix.verdicts import EXACT, VERDICTS, WITHOUT_ROTATION


def test_the_page_shows_the_results() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    assert page.written(text, read(ROOT / RESULTS)) == text


def test_every_result_says_what_was_compared_or_why_not() -> None:
    for name, line in read(ROOT / RESULTS).items():
        assert line["verdict"] in VERDICTS, name
        if line["verdict"] == EXACT:
            assert line["oracle"] and line["error"] < 1e-3 and line["visible"] > 0.02, name
        else:
            assert line["reason"], name


def test_a_result_moves_to_the_table_of_its_verdict() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    line = {"architecture": "NewForCausalLM", "kind": "text", "verdict": "refused", "reason": "field: a new reason"}
    assert "a new reason" not in text
    refused = page.written(text, read(ROOT / RESULTS) | {"NewForCausalLM": line})
    assert "| `NewForCausalLM` | field: a new reason |" in refused.split("## Refused")[1].split("## Differs")[0]


def test_a_refused_model_says_what_stock_vllm_does() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    line = {"architecture": "NewForCausalLM", "kind": "text", "verdict": "refused", "reason": "a new reason"}
    for stock, cell in (("runs, alone (no class)", "runs"), ("stops: Error: no kernel", "stops: Error: no kernel")):
        refused = page.written(text, read(ROOT / RESULTS) | {"NewForCausalLM": line | {"stock": stock}})
        assert f"| `NewForCausalLM` | a new reason | {cell} |" in refused


def test_every_architecture_has_a_result() -> None:
    assert set(read(ROOT / RESULTS)) == set(rotating())
    assert set(WITHOUT_ROTATION) <= set(architectures())
