"""models/README.md says what was measured, and its points hold."""

import json

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.file import load
from ropeswitch.factors.fingerprint import fingerprint
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.models.miniature import page
from ropeswitch.models.miniature.card import Ratio
from ropeswitch.models.miniature.experiments import REPLY
from ropeswitch.models.miniature.recipe import FULL
from tests.docs.pages import ROOT

RESULTS = ROOT / page.RESULTS
ENDS = [each.max_length for each in load(BUNDLED_FACTORS).ladder.sets]


def test_the_page_shows_the_results() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    assert page.written(text, RESULTS) == text


def test_every_set_was_measured_at_every_length_with_three_seeds() -> None:
    results = page.tuned(RESULTS)
    lengths = [FULL.window << power for power in range(10)]
    assert results.lengths("perplexity") == lengths
    assert results.lengths("passkey") == [each - REPLY * (each in ENDS) for each in lengths]
    for task in ("perplexity", "passkey"):
        for length in results.lengths(task):
            own = [cell for cell in results.cells if (cell["task"], cell["length"]) == (task, length)]
            wanted = set(page.SETS) - ({"pi", "ntk"} if length == lengths[-1] - REPLY else set())
            assert wanted <= {cell["set_name"] for cell in own}
            assert {cell["seed"] for cell in own} == {0, 1, 2}


def test_the_points_hold() -> None:
    results = page.tuned(RESULTS)
    for length, ours, theirs in page.POINTS:
        ratio = Ratio.of(results.losses(length, ours), results.losses(length, theirs))
        assert ratio.verdict == "yes", (length, ours, theirs, ratio)


def test_searches_without_tuning_beat_what_is_known_and_chance() -> None:
    results = page.Results.read([RESULTS / page.UNTUNED])
    pairs = page.untuned_pairs(results)
    assert len(pairs) == 3 * 5
    for length, ours, theirs in pairs:
        ratio = Ratio.of(results.losses(length, ours), results.losses(length, theirs))
        assert ratio.verdict == "yes", (length, ours, theirs, ratio)


def test_what_was_measured_is_the_bundled_model() -> None:
    whole = FactorLadder(load(BUNDLED_FACTORS).ladder.sets).to_json()
    files = [path for path in RESULTS.glob("*.json") if path.name != page.UNTUNED]
    assert len(files) == 12
    for path in files:
        content = json.loads(path.read_text())
        assert content["settings"]["target"]["fingerprint"] == fingerprint(str(BUNDLED_MODEL)), path
        sets = content["sets"]
        assert sets["long"]["factors"] == whole[-1]["factors"] and sets["short"]["factors"] == whole[0]["factors"]
        assert sets.get("switched", whole) == whole
