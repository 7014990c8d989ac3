"""Cases of a model compiled in pieces; ``test_piecewise.py`` runs them in a process of its own, with ``piecewise.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM
from vllm.compilation.counter import compilation_counter
from vllm.config import CompilationMode

from ropeswitch.kernels import apply_rows_triton
from tests.exactness.batches import check_batch
from tests.exactness.reference import Reference


def test_in_pieces(
    start: Callable[..., LLM], phi3: Path, phi3_reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and log-probabilities are right, in both sets and across the limit, with our op inside the pieces."""
    in_place: list[bool] = []
    launch = apply_rows_triton._launch

    def noting(query: Any, key: Any, query_out: Any, *rest: Any) -> None:
        in_place.append(query is query_out)
        launch(query, key, query_out, *rest)

    monkeypatch.setattr(apply_rows_triton, "_launch", noting)
    llm = start(phi3, enforce_eager=False)
    compilation = llm.llm_engine.vllm_config.compilation_config
    assert compilation.mode == CompilationMode.VLLM_COMPILE and compilation.backend == "inductor"
    # Two layers: three pieces that are compiled, and attention between them.
    assert compilation_counter.num_piecewise_capturable_graphs_seen == 3
    assert compilation_counter.num_piecewise_graphs_seen == 5
    assert compilation_counter.num_inductor_compiles >= 3
    in_place.clear()
    check_batch(llm, phi3_reference, [5, 64, 65, 63, 200], max_tokens=6)
    # Of code that is not compiled it would be in place.
    assert in_place and not any(in_place)
