"""Measures one architecture: stock vLLM against transformers, then a ladder against transformers or stock vLLM."""

import importlib
import math
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from vllm import EngineArgs
from vllm.transformers_utils.config import get_hf_text_config

from ropeswitch.factors.errors import FactorError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.engine_args import configure_from_key
from tests.exactness.engines import ENGINE
from tests.matrix import checkpoint, made_up
from tests.matrix.oracle import HuggingFace, Scored, error_of, score, worst_of
from tests.matrix.recipe import Recipe
from tests.matrix.recipes import RECIPES, architectures
from tests.matrix.runs import CASES, WITHIN, Run, engine, run
from tests.matrix.stock_tables import forced, rotation_in_torch, tables_of
from tests.matrix.tiny import WINDOW
from tests.matrix.verdicts import (
    DIFFERS,
    EXACT,
    LADDER,
    NO_CHECKPOINT,
    NOT_COMPARED,
    NOT_ON_CPU,
    REFERENCE,
    REFUSED,
    STOCK,
    STOPS,
    WRAPPED,
)

# Where the sets of the ladder end.
ENDS = (WINDOW, 2 * WINDOW, 4 * WINDOW)
LONGEST = max(ENDS)
# Fewer tokens a step than most prompts have: they are prefilled in chunks.
STEP = 96
# Largest error in log-probability, and the smallest effect of a set on it, or a wrong set could pass.
TOLERANCE, VISIBLE = 1e-3, 2e-2


@dataclass(frozen=True)
class Result:
    """One line of the results file.

    Attributes:
        architecture: Its name in vLLM's registry.
        kind: Text, multimodal, or the Transformers backend.
        verdict: One of ``verdicts.VERDICTS``.
        reason: Why it is not exact; nothing where it is.
        oracle: What the ladder was compared with.
        stock: How stock vLLM compares with transformers within the window.
        tokens: Generated tokens that were compared.
        error: The largest error in log-probability.
        visible: The largest difference in log-probability that the choice of a set makes, of the two sets that differ least.
        cached: Prompt tokens that the second run had from the prefix cache.
        replaced: What torch computes for want of a CPU kernel, for stock vLLM and with the ladder.
        seconds: That it took.
    """

    architecture: str
    kind: str
    verdict: str
    reason: str = ""
    oracle: str = ""
    stock: str = ""
    tokens: int = 0
    error: float | None = None
    visible: float | None = None
    cached: int = 0
    replaced: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Compared:
    """How a ladder's tokens compare with those of an oracle."""

    error: float
    place: str
    visible: float


def measure(
    name: str, ladder: Mapping[str, Any] | None = None, stage: Callable[[str], object] = lambda _: None
) -> Result:
    """The verdict on one architecture.

    Args:
        name: The architecture.
        ladder: What replaces the recipe's ladder, as in ``additional_config["ropeswitch"]``.
        stage: Called with each stage that begins.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = _measure(name, Path(folder), ladder, stage)
    return replace(result, seconds=round(time.monotonic() - start, 1))


def _measure(name: str, folder: Path, ladder: Mapping[str, Any] | None, stage: Callable[[str], object]) -> Result:
    recipe = RECIPES.get(name, Recipe())
    ladder = {"ladder": recipe.ladder} if ladder is None else ladder
    result = Result(name, architectures()[name], EXACT, replaced=recipe.replaced.replace("_", " "))
    try:
        model, why = checkpoint.make(name, recipe, folder)
    except Exception as error:
        return replace(result, verdict=NO_CHECKPOINT, reason=_sentence(error))
    for module in filter(None, recipe.replaced.split(", ")):
        importlib.import_module(f"tests.matrix.{module}").install()
    stage(STOCK)
    arguments = {"model": str(folder), **ENGINE, "max_num_batched_tokens": STEP, **recipe.engine}
    arguments["skip_tokenizer_init"] = recipe.tokens is None
    if result.kind == WRAPPED:
        # Else vLLM asks for the processors of images and sounds, which text-only requests do not need.
        arguments.setdefault("language_model_only", True)
    beyond = arguments | {"max_model_len": LONGEST}
    try:
        within, model, why = _stock(arguments, model, why)
    except Exception as error:
        stops = _sentence(error)
        if refusal := _refusal(beyond, ladder):
            return replace(result, verdict=REFUSED, reason=refusal, stock=f"{STOPS}{stops}")
        return replace(result, verdict=NOT_ON_CPU, reason=stops)
    result = replace(result, stock=f"runs, alone ({why})")
    off = math.inf
    if model is not None:
        off, _ = max(worst_of(HuggingFace(model, {WINDOW: 1.0}), *each) for each in within)
        result = replace(result, stock=f"{off:.1e} off transformers within the window")
    stage(LADDER)
    beyond = arguments | {"max_model_len": LONGEST}
    try:
        with engine(beyond | {"additional_config": {"ropeswitch": dict(ladder)}}) as llm:
            first, _ = run(llm, CASES)
            second, cached = run(llm, CASES)
    except (UnsupportedError, FactorError) as error:
        return replace(result, verdict=REFUSED, reason=_sentence(error))
    except Exception as error:
        return _stopped(result, beyond, error)
    runs = [*first, *second]
    result = replace(result, tokens=sum(len(output) for _, output, _ in runs), cached=cached)
    trained = recipe.trained
    factors = {end: end / trained.get("original_max_position_embeddings", WINDOW) for end in ENDS}
    compared = None
    if model is not None:
        compared = _with_transformers(HuggingFace(model, factors, trained), runs)
        result = replace(result, oracle="transformers")
    if compared is None or not compared.error < TOLERANCE:
        stage(REFERENCE)
        oracle = f"stock vLLM with {'static YaRN' if recipe.forced is None else 'forced frequencies'}"
        try:
            with rotation_in_torch():
                compared = _with_stock(arguments, factors, recipe, runs)
                itself = compared if compared.error < TOLERANCE else _batch_of_stock(arguments)
        except Exception as error:
            return replace(result, verdict=NOT_COMPARED, reason=f"{oracle} stops: {_sentence(error)}")
        result = replace(result, oracle=oracle)
        if not itself.error < TOLERANCE:
            reason = f"stock vLLM gives a batch other log-probabilities than each request alone: {itself.error:.2g} off"
            return replace(result, verdict=NOT_ON_CPU, reason=reason)
    return _judged(result, compared)


def _judged(result: Result, compared: Compared) -> Result:
    result = replace(result, error=float(f"{compared.error:.2g}"), visible=float(f"{compared.visible:.2g}"))
    if not compared.visible > VISIBLE:
        reason = f"{result.oracle} is no reference: its sets differ by {compared.visible:.2g} only"
        return replace(result, verdict=NOT_COMPARED, reason=reason)
    if not compared.error < TOLERANCE:
        return replace(result, verdict=DIFFERS, reason=f"{compared.place}: log-probability {compared.error:.2g} off")
    return result


def _stock(arguments: dict[str, Any], model: Any, why: str) -> tuple[list[Run], Any, str]:
    """What stock vLLM gives within the window, the model of transformers to compare with or None, and why None.

    Where vLLM cannot load what transformers saved, ``arguments`` get weights that are made in vLLM.
    """
    if model is not None:
        try:
            return _within(arguments), model, ""
        except Exception as error:
            traceback.print_exception(error)
            why = f"vLLM does not load what transformers saves: {type(error).__name__}"
    arguments["load_format"] = made_up.LOAD_FORMAT
    return _within(arguments), None, why


def _refusal(arguments: Mapping[str, Any], ladder: Mapping[str, Any]) -> str:
    """Why the start refuses the config and its ladder, whatever stock vLLM runs on; nothing where it does not."""
    args = EngineArgs(**arguments, additional_config={"ropeswitch": dict(ladder)})
    try:
        configure_from_key(args)
    except (UnsupportedError, FactorError) as error:
        return _sentence(error)
    except Exception as error:
        traceback.print_exception(error)
    return ""


def _within(arguments: Mapping[str, Any]) -> list[Run]:
    with engine({**arguments, "max_model_len": WINDOW}) as llm:
        return run(llm, WITHIN)[0]


def _stopped(result: Result, arguments: Mapping[str, Any], error: Exception) -> Result:
    """Whose fault it is that an engine with a ladder stopped: stock vLLM gets the same requests."""
    reason = _sentence(error)
    try:
        with engine({**arguments, "hf_overrides": _static_yarn({}, 1)}) as llm:
            run(llm, CASES)
            run(llm, CASES)
    except Exception as stock:
        return replace(result, verdict=NOT_ON_CPU, reason=f"stops at longer requests: {_sentence(stock)}", stock="")
    return replace(result, verdict=DIFFERS, reason=f"the engine stopped: {reason}")


def _with_transformers(oracle: HuggingFace, runs: Sequence[Run]) -> Compared | None:
    """The comparison; None where transformers' model has no frequencies that could be forced."""
    if not oracle.buffers:
        return None
    error, place = max(worst_of(oracle, *each) for each in runs)
    return Compared(error, place, oracle.closest_sets(runs[-1][0]))


def _with_stock(
    arguments: Mapping[str, Any], factors: Mapping[int, float], recipe: Recipe, runs: Sequence[Run]
) -> Compared:
    """The comparison of a ladder with stock vLLM, of which one engine for each set scores every sequence alone and whole."""
    scored = {}
    for end, factor in factors.items():
        if recipe.forced is None:
            scored[end] = _scores(arguments, _static_yarn(recipe.trained, factor), runs)
            continue
        with forced(recipe.forced, factor, recipe.trained, 2 * LONGEST):
            scored[end] = _scores(arguments, _static_yarn({}, 1), runs)
    # Of the longest request's tokens just above the window: stock vLLM's table of the second set ends soon after.
    prompt, output, _ = runs[-1]
    rows = torch.tensor(
        [[each.of_token for each in scored[end][(*prompt, *output)][WINDOW : ENDS[1] - 1]] for end in factors]
    )
    visible = min(float((a - b).abs().max()) for i, a in enumerate(rows) for b in rows[:i])
    return Compared(*_worst(runs, scored), visible)


def _batch_of_stock(arguments: Mapping[str, Any]) -> Compared:
    """The comparison of stock vLLM's batch within the window with its scores of each sequence alone."""
    within = _within(arguments)
    return Compared(*_worst(within, {WINDOW: _scores(arguments, _static_yarn({}, 1), within)}), math.nan)


Scores = dict[tuple[int, ...], list[Scored]]


def _scores(arguments: Mapping[str, Any], overrides: Callable[[Any], Any], runs: Sequence[Run]) -> Scores:
    """What stock vLLM has for every token of each run's sequence."""
    whole = {"max_model_len": 2 * LONGEST, "max_num_batched_tokens": 2 * LONGEST, "hf_overrides": overrides}
    with tables_of(2 * LONGEST), engine({**arguments, **whole}) as llm:
        return {each: score(llm, each) for each in {(*prompt, *output) for prompt, output, _ in runs}}


def _worst(runs: Sequence[Run], scored: Mapping[int, Scores]) -> tuple[float, str]:
    """The largest error of any run, and where; ``scored`` are the scores by the longest sequence of each set, rising."""
    found = (0.0, "")
    for prompt, output, log_probs in runs:
        for place, log_prob in enumerate(log_probs, start=len(prompt)):
            of = scored[next(end for end in scored if place <= end)][(*prompt, *output)][place - 1]
            where = f"token {place} after a prompt of {len(prompt)}"
            found = max(found, (error_of(log_prob, of.of_token, of.best), where))
    return found


def _static_yarn(trained: Mapping[str, Any], factor: float) -> Callable[[Any], Any]:
    """``hf_overrides`` that give every length YaRN of ``factor``; 1 stands for the config's own rotary parameters."""

    def override(config: Any) -> Any:
        # Wherever the decoder's config is in the whole one.
        text = get_hf_text_config(config)
        theta = getattr(text, "rope_theta", 10000.0)
        rope = dict(getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": theta})
        if factor != 1:
            yarn = (
                {"original_max_position_embeddings": WINDOW} | dict(trained) | {"rope_type": "yarn", "factor": factor}
            )
            if "full_attention" in rope:
                rope["full_attention"] = rope["full_attention"] | yarn
            else:
                rope |= yarn
        fields = {"rope_parameters": rope, "max_position_embeddings": 2 * LONGEST}
        text.update(fields | ({"seq_length": 2 * LONGEST} if hasattr(text, "seq_length") else {}))
        return config

    return override


def _sentence(error: BaseException) -> str:
    """An error in one line without what differs from run to run; the whole of it goes to the log."""
    traceback.print_exception(error)
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"/tmp/\S+?(?=['\"\s,]|$)", "MODEL", text)
    # pydantic's frame around a check's own text.
    if found := re.search(r"validation error for \w+ (?:Value error|Assertion failed), (.*?) \[type=", text):
        text = found[1]
    if not isinstance(error, UnsupportedError | FactorError | ValueError | NotImplementedError):
        text = f"{type(error).__name__}: {text}"
    return text[:500]


def line(result: Result) -> dict[str, Any]:
    """A result as a line of the results file, without what is empty."""
    return {name: value for name, value in asdict(result).items() if value not in ("", None)}
