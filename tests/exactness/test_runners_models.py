"""As `test_runners.py`, with other models: automatic ladders, families, latent attention, drafts, Transformers."""

import pytest

from tests.exactness.runner_process import run_cases

AUTO = ["test_auto_modes.py"]
TRANSFORMERS = ["test_transformers_modes.py"]
FAMILY = ["test_family_modes.py"]
LATENT = ["test_latent_modes.py"]
DRAFTS = ["test_drafts.py", "test_draft_modes.py"]
# On V1, models run in every mode. On V2, whose modes test_runners.py covers, they run in the two that move requests most,
# and in captured graphs, whose buffers depend on the model's patches.
MOVED = "mixed_batch or preemption"
CAPTURED = f"{MOVED} or captured"
# Every kind of draft model, and these modes with an EAGLE head, which shares the target's cache.
DRAFTED = f"not draft_modes or (eagle and ({MOVED} or cold_and_warm))"
pytestmark = pytest.mark.full
RUNS = [
    # V2 runner, asynchronous scheduling, our Triton kernels, then what is run: files, and the tests in them.
    pytest.param("0", "1", "0", AUTO, "", id="v1-async-auto-ladder"),
    pytest.param("1", "1", "0", AUTO, f"{CAPTURED} or crossed_by_one or forced", id="v2-async-auto-ladder"),
    pytest.param("1", "1", "1", AUTO, "asked_for", id="v2-async-triton-auto-ladder"),
    pytest.param("1", "1", "0", AUTO, "tp2", id="v2-async-two-ranks-auto-ladder"),
    pytest.param("0", "1", "0", FAMILY, "", id="v1-async-families"),
    pytest.param("1", "1", "0", FAMILY, MOVED, id="v2-async-families"),
    pytest.param("1", "1", "0", FAMILY, "two_ranks and (gemma3 or falcon-h1)", id="v2-async-two-ranks-families"),
    pytest.param("0", "1", "0", TRANSFORMERS, "", id="v1-async-transformers-backend"),
    pytest.param("1", "1", "0", TRANSFORMERS, CAPTURED, id="v2-async-transformers-backend"),
    pytest.param("1", "1", "0", TRANSFORMERS, "tp2", id="v2-async-two-ranks-transformers"),
    pytest.param("0", "1", "0", LATENT, "", id="v1-async-latent"),
    pytest.param("1", "1", "0", LATENT, CAPTURED, id="v2-async-latent"),
    pytest.param("1", "1", "1", LATENT, "asked_for", id="v2-async-triton-latent"),
    pytest.param("1", "1", "0", LATENT, "tp2", id="v2-async-two-ranks-latent"),
    pytest.param("0", "1", "0", DRAFTS, "", id="v1-async-drafts"),
    pytest.param("1", "1", "0", DRAFTS, DRAFTED, id="v2-async-drafts"),
    pytest.param("1", "1", "0", DRAFTS, "tp2 and eagle", id="v2-async-two-ranks-drafts"),
]  # fmt: skip


@pytest.mark.parametrize(("v2", "asynchronous", "triton", "files", "chosen"), RUNS)
def test_cases(v2: str, asynchronous: str, triton: str, files: list[str], chosen: str) -> None:
    # Two ranks are among the long tests whatever they run on.
    ranks = "tp2" in chosen or "two_ranks" in chosen
    run_cases(v2, asynchronous, triton, files, chosen, "full" if ranks else "not full")
