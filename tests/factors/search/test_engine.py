"""The engine's perplexities are those of transformers, whatever stands beside them, and the same at every call."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.search.engine_evaluator import EngineEvaluator
from ropeswitch.factors.search.job import make_evaluator
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective
from ropeswitch.factors.search.plan import extension
from ropeswitch.factors.search.settings import SearchSettings
from tests.exactness import checkpoints
from tests.passkey_tiny import FOLDER

LENGTH = 300


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine's variables are put back after a test."""
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("VLLM_LOGGING_LEVEL")
    yield


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_both_evaluators_agree(kind: str, tmp_path: Path, environment: None) -> None:
    """On random checkpoints, where a wrong angle changes everything; start tokens and scales are among the candidates."""
    folder = checkpoints.llama(tmp_path / "m") if kind == "llama" else checkpoints.phi3(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder)
    facts = ModelFacts(str(folder), Rope(32, 10000.0, 64), None, None)
    rng = random.Random(kind)
    rows = tuple(tuple(rng.choices(range(3, checkpoints.VOCAB), k=LENGTH)) for _ in range(3))
    objective = Objective(rows, (LENGTH - 1, 40, 7), ("a", "b", "c"))
    plan = extension(facts, SearchSettings(LENGTH))
    drawn = np.random.default_rng(0)
    candidates = [*plan.starts, *(plan.space.draw(drawn) for _ in range(13))]
    sets = [plan.factor_set(each, "x", LENGTH) for each in candidates]
    transformers = make_evaluator("transformers", facts, objective, "float32").evaluate(sets)
    engine = make_evaluator("engine", facts, objective, "float32")
    try:
        found = engine.evaluate(sets)
        np.testing.assert_allclose(found, transformers, rtol=1e-3)
        # Nothing of one population is left in the next, and the same one is told the same, to the last digit.
        np.testing.assert_allclose(engine.evaluate(sets[:3:-1]), transformers[:3:-1], rtol=1e-3)
        assert engine.evaluate(sets) == found
    finally:
        engine.close()
    assert np.std(np.log(transformers)) > 0.01


@pytest.mark.full
def test_models_that_the_engine_cannot_rotate(without_rope: str, tmp_path: Path, environment: None) -> None:
    objective = Objective(((1,) * 8,), (7,), ("a",))
    facts = ModelFacts(without_rope, Rope(16, 10000.0, 256), None, None)
    with pytest.raises(FactorError, match=r"^engine: model .*gpt2.*rope_theta: missing"):
        make_evaluator("engine", facts, objective, "float32")
    wrong = ModelFacts(str(FOLDER), Rope(16, 10000.0, 256), None, None)
    with pytest.raises(FactorError, match=r"^engine: model .* needs 16"):
        make_evaluator("engine", wrong, objective, "float32")


def test_a_choice_of_plugins_without_ours(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    facts = ModelFacts(str(FOLDER), Rope(16, 10000.0, 256), None, None)
    with pytest.raises(FactorError, match=r"^VLLM_PLUGINS: 'other' leaves out 'ropeswitch'"):
        make_evaluator("engine", facts, Objective(((1,) * 8,), (7,), ("a",)), "float32")


def test_a_worker_that_cannot_load_the_sets() -> None:
    evaluator = EngineEvaluator.__new__(EngineEvaluator)
    evaluator._objective = Objective(((1,) * 8,), (7,), ("a",))
    answers = [None, "worker 1: ValueError: why"]
    evaluator._llm = SimpleNamespace(collective_rpc=lambda method, args: answers)
    with pytest.raises(FactorError, match=r"^engine: worker 1: ValueError: why$"):
        evaluator.evaluate([FactorSet("x", 8, (1.0,))])
