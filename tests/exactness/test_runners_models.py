"""As `test_runners.py`, with other models: automatic ladders, families, latent attention, drafts, Transformers."""

import pytest

from tests.exactness.runner_process import run_cases

ALL = ["test_auto_modes.py", "test_family_modes.py", "test_transformers_modes.py", "test_latent_modes.py"]
ALL += ["test_drafts.py", "test_draft_modes.py"]
# On V1 without asynchronous scheduling every mode of these models runs elsewhere. Here they run in a mixed batch, and some
# in captured graphs, whose buffers depend on the model's patches. Preemption, which takes three times as long, runs with an
# automatic ladder and with what keeps more than keys and values. Each kind of draft runs once, and an EAGLE head, which
# shares the target's cache, in these modes and with a warm prefix cache.
CHOSEN = (
    "mixed_batch and (auto_modes or family_modes or transformers_modes or latent_modes or eagle)"
    " or captured and (auto_modes or transformers_modes or latent_modes)"
    " or auto_modes and (crossed_by_one or forced)"
    " or preemption and (auto_modes or falcon-h1 or eagle)"
    " or cold_and_warm and eagle"
    " or test_drafts"
)
RANKS = (
    "tp2 and (test_parallel or auto_modes or transformers_modes or latent_modes or eagle)"
    " or two_ranks and (gemma3 or falcon-h1) or local_layers"
)
pytestmark = pytest.mark.full
RUNS = [
    # V2 runner, then what is run: files, the tests in them by name and by mark, and their number.
    pytest.param("0", ALL, CHOSEN, "not full", 26, id="v1"),
    pytest.param("1", ALL, CHOSEN, "not full", 26, id="v2"),
    # Two ranks are among the long tests whatever they run on.
    pytest.param("1", [*ALL, "test_parallel.py"], RANKS, "full", 8, id="v2-two-ranks"),
]


@pytest.mark.parametrize(("v2", "files", "chosen", "marked", "at_least"), RUNS)
def test_cases(v2: str, files: list[str], chosen: str, marked: str, at_least: int) -> None:
    """All with asynchronous scheduling."""
    run_cases(v2, "1", "0", files, chosen, marked, at_least)
