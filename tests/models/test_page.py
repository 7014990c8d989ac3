"""models/README.md says what was measured, and its points hold."""

from ropeswitch.models.miniature import page
from ropeswitch.models.miniature.card import Ratio
from ropeswitch.models.miniature.recipe import FULL
from tests.docs.pages import ROOT

RESULTS = ROOT / page.RESULTS


def test_the_page_shows_the_results() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    assert page.written(text, RESULTS) == text


def test_every_set_was_measured_at_every_length_with_three_seeds() -> None:
    results = page.tuned(RESULTS)
    lengths = [FULL.window << power for power in range(10)]
    assert results.lengths("perplexity") == lengths
    assert results.lengths("passkey") == [*lengths[:-1], lengths[-1] - 16]
    for task in ("perplexity", "passkey"):
        for length in results.lengths(task):
            own = [cell for cell in results.cells if (cell["task"], cell["length"]) == (task, length)]
            wanted = set(page.SETS) - ({"pi", "ntk"} if length == lengths[-1] - 16 else set())
            assert wanted <= {cell["set_name"] for cell in own}
            assert {cell["seed"] for cell in own} == {0, 1, 2}


def test_the_points_hold() -> None:
    results = page.tuned(RESULTS)
    for length, ours, theirs in page.POINTS:
        ratio = Ratio.of(results.losses(length, ours), results.losses(length, theirs))
        assert ratio.verdict == "yes", (length, ours, theirs, ratio)
