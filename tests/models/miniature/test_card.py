"""Tables and verdicts from results."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.models.miniature.card import Ratio, Results, comparison, table


def cell(set_name: str, seed: int, losses: list[float]) -> dict[str, object]:
    result = [{"nll": 100 * loss, "tokens": 100} for loss in losses]
    return {"task": "perplexity", "length": 512, "set_name": set_name, "seed": seed, "result": result}


def test_documents_are_paired_whatever_the_order_of_cells() -> None:
    cells = (cell("a", 1, [2.0, 3.0]), cell("b", 0, [1.1]), cell("a", 0, [1.0]), cell("b", 1, [2.1, 3.1]))
    results = Results((), cells)
    assert results.losses(512, "a") == [1.0, 2.0, 3.0]
    ratio = Ratio.of(results.losses(512, "a"), results.losses(512, "b"))
    assert ratio.value == pytest.approx(math.exp(-0.1)) and ratio.verdict == "yes"
    assert "| 512 | a | b | 0.9048 (0.9048 to 0.9048) | yes |" in comparison(results, [(512, "a", "b")])
    assert "no, the other way round" in comparison(results, [(512, "b", "a")])


@given(st.lists(st.floats(0, 9), min_size=2, max_size=20))
def test_a_set_is_never_better_than_itself(losses: list[float]) -> None:
    assert Ratio.of(losses, losses).verdict == "not beyond the error bars"


def test_differences_that_scatter_prove_nothing() -> None:
    assert Ratio.of([1.0, 3.0, 2.0], [1.5, 2.4, 2.2]).verdict == "not beyond the error bars"
    with pytest.raises(ValueError, match="1 and 1 documents"):
        Ratio.of([1.0], [2.0])


def test_a_table_has_every_length_and_a_dash_for_what_is_missing() -> None:
    rows = (
        {"task": "perplexity", "length": 1024, "set_name": "a", "value": 6.5, "standard_error": 0.25},
        {"task": "perplexity", "length": 512, "set_name": "a", "value": 7.25, "standard_error": None},
        {"task": "perplexity", "length": 512, "set_name": "b", "value": 8.0, "standard_error": 0.5},
        {"task": "passkey", "length": 512, "set_name": "b", "value": 0.9, "low": 0.8, "high": 0.95},
    )
    made = table(Results(rows, ()), "perplexity", ["a", "b"])
    assert made.splitlines()[2:] == ["| 512 | 7.250 | 8.000 ± 0.500 |", "| 1,024 | 6.500 ± 0.250 | - |"]
    assert table(Results(rows, ()), "passkey", ["b"]).splitlines()[2:] == ["| 512 | 90% (80 to 95) |"]


def test_what_is_kept_has_the_same_losses() -> None:
    document = {"document": "7.txt", "start": 3, "windows": 1, "tokens": 256, "nll": 449.04320449888473}
    content = {"rows": [], "cells": [cell("a", 0, []) | {"result": [document]}]}
    kept = json.loads(Results.published(json.dumps(content)))
    assert kept["cells"][0]["result"] == [{"document": "7.txt", "tokens": 256, "nll": 449.043204}]
    assert Results((), tuple(kept["cells"])).losses(512, "a") == pytest.approx([449.04320449888473 / 256], rel=1e-8)
