"""``ropeswitch factors tune``: what it compares, learns and chooses, and that a stopped run resumes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorLadder, FactorSet, LayerFactors
from ropeswitch.factors.kept import Kept
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.tune import run
from ropeswitch.factors.tune.learn import TURN, LearnedRotary, _gradient, learn
from ropeswitch.factors.tune.measure import CONFIRM, NEVER, Losses, Measurer
from ropeswitch.factors.tune.run import Settings, Tuner, carried, ladder_of
from ropeswitch.factors.tune.shelf import AUTO, BY_LAYER, NATIVE, NEXT, shelf
from ropeswitch.server.cli import main
from tests.passkey_tiny.passkey import filler_text

PLAIN = FactorSet("original", 256, (1.0,) * 16)
AUTOMATIC = FactorLadder((PLAIN, FactorSet("512", 512, (1.0,) * 8 + (2.0,) * 8, 1.07)))
FEW = ["--max-model-len", "384", "--documents", "2", "--tries", "1", "--steps", "1", "--by-layer"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune-texts")
    for number in range(16):
        (folder / f"{number}.txt").write_text(filler_text(number, 90))
    return folder


@pytest.fixture(scope="module")
def plain_model(plain: str) -> LocalModel:
    return LocalModel.load(plain)


def test_the_shelf_is_simplest_first_and_has_nothing_twice(plain_model: LocalModel) -> None:
    found = shelf(plain_model.rope, AUTOMATIC, 384, replace(AUTOMATIC.sets[1], scale=1.1))
    assert [each.source for each in found][:4] == [NEXT, NATIVE, AUTO, "pi"]
    assert len({each.factor_set.rotates for each in found}) == len(found) > 10
    # A set that comes twice keeps its first place.
    yarn = next(each for each in found if each.source == "yarn").factor_set
    again = shelf(plain_model.rope, FactorLadder((PLAIN, yarn)), 384, yarn, [replace(yarn, name="a"), PLAIN])
    assert [each.source for each in again][:3] == [NEXT, NATIVE, "pi"]
    other = replace(yarn, name="mine", scale=1.23)
    assert "given mine" in [each.source for each in shelf(plain_model.rope, AUTOMATIC, 384, None, [other])]
    # Rules stretch the window that the ladder has, whatever the config's other lengths say.
    wide = replace(plain_model.rope, original_length=1000)
    assert shelf(wide, AUTOMATIC, 384)[2].factor_set.factors == (1.5,) * 16
    assert {(each.factor_set.name, each.factor_set.max_length) for each in found} == {("384", 384)}
    # A model that was trained with a scaling keeps to it.
    trained = FactorLadder((replace(PLAIN, factors=(1.0,) * 15 + (8.0,)), AUTOMATIC.sets[1]))
    assert [each.source for each in shelf(plain_model.rope, trained, 384, None)] == [NATIVE, AUTO]


@pytest.mark.parametrize("by_layer", [False, True])
def test_learning_lowers_the_loss_and_leaves_the_model_alone(
    by_layer: bool, plain_model: LocalModel, folder: Path
) -> None:
    layers = len(plain_model.model.base_model.layers) if by_layer else 1
    documents = [torch.tensor(plain_model.tokenizer.encode(filler_text(at, 60)))[:384] for at in range(2)]
    start = FactorSet("384", 384, (3.0,) * 16, 1.3)
    before = {name: value.clone() for name, value in plain_model.model.state_dict().items()}
    own, asked = plain_model.model.base_model.rotary_emb, next(plain_model.model.parameters()).requires_grad

    def judge(made: FactorSet) -> float:
        return float(plain_model.losses(torch.stack(documents), made, first=256).mean())

    passes: list[int] = []
    kept = Kept(Path("kept.jsonl"), {})
    learned = learn(plain_model, start, layers, documents, 256, 2, judge, kept, passes.append)
    assert judge(learned) < judge(start) and (learned.factors == start.factors) == by_layer
    assert len(learned.layers) == (layers if by_layer else 0)
    assert passes == [3 * 384] * 4 and not any(each.training for each in plain_model.model.modules())
    assert plain_model.model.base_model.rotary_emb is own
    assert next(plain_model.model.parameters()).requires_grad is asked
    assert all(torch.equal(value, before[name]) for name, value in plain_model.model.state_dict().items())
    # A stopped run takes every finished pass from the file.
    assert len(kept) == 4
    again = Kept(Path("kept.jsonl"), {})
    assert learn(plain_model, start, layers, documents, 256, 2, judge, again, passes.append) == learned
    assert len(again) == 4
    # Only a gain on the documents to stop by counts.
    found = learn(plain_model, start, layers, documents, 256, 2, lambda made: float(made is not start), kept, print)
    assert found == start


def test_what_was_learned_by_layer_is_carried_to_another_list() -> None:
    layers = (LayerFactors((2.0, 3.0), 1.1), LayerFactors((1.0, 1.5), 0.9))
    learned, to = FactorSet("12k", 12, (2.0, 1.5), 1.0, layers=layers), FactorSet("16k", 16, (4.0, 2.0), 2.0)
    assert carried(learned, replace(to, factors=learned.factors, scale=1.0)).layers == layers
    assert carried(learned, to) == replace(to, layers=(LayerFactors((4.0, 4.0), 2.2), LayerFactors((2.0, 2.0), 1.8)))


def test_a_gradient_is_the_slope_and_a_step_turns_no_pair_far(plain_model: LocalModel) -> None:
    ids = torch.tensor(plain_model.tokenizer.encode(filler_text(0, 60)))[:384]
    start, layers = FactorSet("384", 384, (1.5,) * 16, 1.1), plain_model.model.base_model.layers
    rotary = LearnedRotary(plain_model.rope.theta, start, len(layers), 384, plain_model.model.device)
    passes: list[int] = []
    hook = layers[0].self_attn.register_forward_hook(lambda *_: passes.append(1))
    gradient = _gradient(plain_model, rotary, ids, 256)
    hook.remove()
    assert len(passes) == 2, "a layer's values are computed again for the backward pass, not kept"

    def loss(layer: int, move: int, by: float) -> float:
        rotary.moves.data[layer, move] = by
        made = rotary.as_set(start)
        rotary.moves.data[layer, move] = 0.0
        return float(plain_model.losses(ids[None], made, first=256).double().mean())

    for layer, move in ((0, 9), (1, 12), (1, 16)):
        slope = (loss(layer, move, 0.05) - loss(layer, move, -0.05)) / 0.1
        assert gradient[layer][move] == pytest.approx(slope, rel=0.1, abs=1e-4)
    rotary.moves.data[:] = 1
    made = torch.tensor(rotary.as_set(start).layers[1].factors)
    turned = 384 * rotary.plain * (1 / torch.tensor(start.factors) - 1 / made)
    assert turned.abs().max() <= TURN * 1.01


Level = dict[str, list[float]]


class Scripted:
    """Stands for a measurer: the losses of each source on the texts to choose by and to confirm by, and its pass keys."""

    def __init__(self, choosing: Level, confirming: Level, found: dict[str, int], whole: dict[str, float]) -> None:
        self.choosing, self.confirming, self.found, self.whole = choosing, confirming, found, whole
        self.sources: dict[Any, str] = {}

    def losses(self, factor_set: FactorSet, documents: Any) -> Losses:
        source = BY_LAYER if factor_set.layers else self.sources[factor_set.factors, factor_set.scale]
        values = (self.confirming if documents == CONFIRM else self.choosing).get(source, [9.0, 9.1, 9.2, 9.3])
        chosen = tuple(values[: len(documents)] if documents != CONFIRM else values)
        return Losses(chosen, tuple(each + self.whole.get(source, 0.0) for each in chosen))

    def keys(self, factor_set: FactorSet, length: int, tries: int) -> int:
        return self.found.get(BY_LAYER if factor_set.layers else self.sources[factor_set.factors, factor_set.scale], 0)


LEVEL = {
    AUTO: [2.0, 2.1, 2.2, 2.3],
    "pi": [1.9, 2.0, 2.1, 2.2],
    "ntk": [1.89, 2.01, 2.09, 2.21],
    NATIVE: [2.5, 2.6, 2.7, 2.8],
}


@pytest.mark.parametrize(
    ("choosing", "confirming", "keys", "whole", "wanted"),
    [
        # NTK is no better than PI beyond chance, and PI is simpler.
        (LEVEL, LEVEL, {}, {}, "pi"),
        # The unscaled set is as good as anything.
        (LEVEL | {NATIVE: LEVEL["pi"]}, LEVEL | {NATIVE: LEVEL["pi"]}, {}, {}, NATIVE),
        # Other texts do not confirm it, it loses pass keys, or it is worse within the window: the next is tried.
        (LEVEL, LEVEL | {"pi": LEVEL[NATIVE]}, {}, {"pi": -9.0}, "ntk"),
        (LEVEL | dict.fromkeys(("theta", "longrope2"), LEVEL["pi"]), LEVEL, {AUTO: 1}, {}, AUTO),
        (LEVEL | {"ntk": [1.88, 2.01, 2.09, 2.2]}, LEVEL, {AUTO: 1, "ntk": 1}, {}, "ntk"),
        (LEVEL, LEVEL, {}, {"pi": 0.2}, "ntk"),
        (LEVEL | {BY_LAYER: [1.8, 1.9, 2.0, 2.1]}, LEVEL | {BY_LAYER: LEVEL["pi"]}, {}, {}, BY_LAYER),
        # A loss that is not finite is a worse one.
        (LEVEL | {"pi": [1.9, 2.0, NEVER, 2.2]}, LEVEL, {}, {}, "ntk"),
        (LEVEL | {BY_LAYER: [1.8, 2.1, 1.9, 2.3]}, LEVEL | {BY_LAYER: LEVEL["pi"]}, {}, {}, "pi"),
    ],
)
def test_the_simplest_that_none_beats_if_other_texts_confirm_it(
    choosing: Level, confirming: Level, keys: dict[str, int], whole: dict[str, float], wanted: str,
    plain_model: LocalModel, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Texts:
        def of(self, part: str, length: int, most: int) -> Any:
            return CONFIRM if part == CONFIRM else [torch.zeros(1)] * 4

    scripted = Scripted(choosing, confirming, keys, whole)
    scripted.sources = {each.factor_set.rotates[:2]: each.source for each in shelf(plain_model.rope, AUTOMATIC, 384)}
    monkeypatch.setattr(run, "Measurer", lambda *_: scripted)
    own = LayerFactors((2.0,) * 16)
    monkeypatch.setattr(run, "learn", lambda model, start, layers, *_: replace(start, layers=(own,) * (layers // 2)))
    asked = Settings((384,), 4, 1, BY_LAYER in choosing, 0, by_layer=True)
    tuner = Tuner(plain_model, AUTOMATIC, Texts(), None, asked)  # type: ignore[arg-type]
    [rung] = tuner.run()
    assert rung.chosen.source == wanted and not rung.confirmed.is_worse
    assert bool(rung.refuted) == bool(keys or whole) and len(rung.refuted) <= 3 and len(rung.lost) > 5
    names = {NATIVE: ("original",)}.get(wanted, ("original", "384"))
    assert ladder_of([rung], PLAIN).names == names and ladder_of([rung], PLAIN).max_length == 384


def test_from_a_model_to_a_ladder_and_again_after_a_kill(
    plain: str, texts: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["factors", "tune", plain, "--text", str(texts), *FEW, "-o", "tuned.json"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert " auto " in printed and " of 1 (" in printed and f"ropeswitch serve {plain} --factors tuned.json" in printed
    content = file.load("tuned.json")
    assert content.ladder.max_length == 384 and content.theta == 10000.0
    assert content.description is not None and "on 2 other texts" in content.description
    assert (folder / "tuned.json.svg").read_text().count("auto") > 0
    assert main(command) == 2 and "tuned.json' exists" in capsys.readouterr().err
    # The process was killed while it wrote a line: what it had measured is not measured again.
    kept = Path("tuned.json.tune.jsonl")
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:-1]) + lines[-1][:9])
    measured: list[int] = []
    own: Callable[..., Any] = Measurer._finds
    monkeypatch.setattr(Measurer, "_losses", lambda *each: measured.append(1) or 1 / 0)
    monkeypatch.setattr(Measurer, "_finds", lambda *each: measured.append(1) or own(*each))
    assert main([*command, "--force"]) == 0 and len(measured) == 1
    assert file.load("tuned.json") == content and kept.read_text() == "".join(lines)
    assert main([*command, "--force", "--seed", "1"]) == 2
    assert "seed: it was made with 0, but this run has 1; remove the file" in capsys.readouterr().err
    monkeypatch.setattr(Measurer, "losses", Mock(side_effect=KeyboardInterrupt))
    assert main([*command, "--force"]) == 130 and file.load("tuned.json") == content
    assert "stopped; run the same command again to resume" in capsys.readouterr().err


def test_a_rung_of_the_ladder_is_always_compared(plain: str, texts: Path, folder: Path) -> None:
    few = ["--max-model-len", "640", "--rungs", "640", "--documents", "2", "--tries", "0", "--steps", "0"]
    assert main(["factors", "tune", plain, "--text", str(texts), *few, "-o", "tuned.json"]) == 0
    description = file.load("tuned.json").description
    assert description is not None and "512: " in description and "640: " in description


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-model-len", "256"], "--max-model-len: 256 must exceed 256, the end of the ladder's first set"),
        (["--max-model-len", "512", "--rungs", "300,600"], "--rungs: '300,600' must be above 256 and at most 512"),
        (["--max-model-len", "16k"], "different documents to learn by have"),
        ([*FEW[:2], "--documents", "1"], "--documents: '1' must be"),
        (
            [*FEW[:2], "--by-layer", "--steps", "0"],
            "--by-layer: needs a model with several layers, and --steps above 0",
        ),
        ([*FEW[:2], "--ladder", "file:none.json"], "'none.json': does not exist"),
        ([*FEW[:2], "--candidates", "none.json"], "'none.json': does not exist"),
    ],
)
def test_what_cannot_be_tuned(
    flags: list[str], message: str, plain: str, texts: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["factors", "tune", plain, "--text", str(texts), *flags, "-o", "out.json"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and not Path("out.json").exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_too_little_memory_is_one_line(
    error: Exception, plain: str, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Measurer, "losses", Mock(side_effect=error))
    assert main(["factors", "tune", plain, "--text", str(texts), *FEW, "-o", "out.json"]) == 2
    assert "--max-model-len: 384 needs more memory than there is" in capsys.readouterr().err
