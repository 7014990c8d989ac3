"""As `test_runners.py`, with other models: automatic ladders, families, latent attention, drafts, Transformers."""

import pytest

from tests.exactness.runner_process import run_cases

AUTO = ["test_auto_modes.py"]
TRANSFORMERS = ["test_transformers_modes.py"]
FAMILY = ["test_family_modes.py"]
LATENT = ["test_latent_modes.py"]
DRAFTS = ["test_drafts.py", "test_draft_modes.py"]
# The modes of a draft model with a cache of its own run on V1; those of an EAGLE head, which shares the target's, on V2 too.
MODES_OF_EAGLE = "not (draft_modes and draft_model)"
# Two ranks: a base for each type of layer, attention sinks, recurrent layers, attention scaled by positions.
RANKED = "gemma3 or gpt-oss or falcon-h1 or llama4"
pytestmark = pytest.mark.full
RUNS = [
    # V2 runner, asynchronous scheduling, our Triton kernels, then what is run: files, and the tests in them.
    pytest.param("0", "1", "0", AUTO, "", id="v1-async-auto-ladder"),
    pytest.param("1", "1", "0", AUTO, "", id="v2-async-auto-ladder"),
    pytest.param("1", "1", "1", AUTO, "asked_for", id="v2-async-triton-auto-ladder"),
    pytest.param("1", "1", "0", AUTO, "tp2", id="v2-async-two-ranks-auto-ladder"),
    pytest.param("0", "1", "0", FAMILY, "", id="v1-async-families"),
    pytest.param("1", "1", "0", FAMILY, "not caching_off", id="v2-async-families"),
    pytest.param("1", "1", "0", FAMILY, f"two_ranks and ({RANKED})", id="v2-async-two-ranks-families"),
    pytest.param("0", "1", "0", TRANSFORMERS, "", id="v1-async-transformers-backend"),
    pytest.param("1", "1", "0", TRANSFORMERS, "", id="v2-async-transformers-backend"),
    pytest.param("1", "1", "0", TRANSFORMERS, "tp2", id="v2-async-two-ranks-transformers"),
    pytest.param("0", "1", "0", LATENT, "", id="v1-async-latent"),
    pytest.param("1", "1", "0", LATENT, "", id="v2-async-latent"),
    pytest.param("1", "1", "1", LATENT, "asked_for", id="v2-async-triton-latent"),
    pytest.param("1", "1", "0", LATENT, "tp2", id="v2-async-two-ranks-latent"),
    pytest.param("0", "1", "0", DRAFTS, "", id="v1-async-drafts"),
    pytest.param("1", "1", "0", DRAFTS, MODES_OF_EAGLE, id="v2-async-drafts"),
    pytest.param("1", "1", "0", DRAFTS, "tp2", id="v2-async-two-ranks-drafts"),
]  # fmt: skip


@pytest.mark.parametrize(("v2", "asynchronous", "triton", "files", "chosen"), RUNS)
def test_cases(v2: str, asynchronous: str, triton: str, files: list[str], chosen: str) -> None:
    # Two ranks are among the long tests whatever they run on.
    ranks = "tp2" in chosen or "two_ranks" in chosen
    run_cases(v2, asynchronous, triton, files, chosen, "full" if ranks else "not full")
