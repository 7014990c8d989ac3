"""Measures one architecture: stock vLLM against transformers, then a ladder against transformers or stock vLLM."""

import gc
import importlib
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, EngineArgs

from ropeswitch.factors.errors import FactorError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.engine_args import configure_from_key
from tests.exactness.engines import ENGINE, first_choice, greedy, prompts
from tests.matrix import checkpoint, made_up, results
from tests.matrix.recipe import RECIPES, WRAPPED, Recipe, architectures
from tests.matrix.references import HuggingFace, error_of
from tests.matrix.results import DIFFERS, EXACT, NO_CHECKPOINT, NOT_COMPARED, NOT_ON_CPU, REFUSED, Line
from tests.matrix.stock import forced, rotation_in_torch, static_yarn, tables_of
from tests.matrix.tiny import TEXT_VOCAB, WINDOW

# Where the sets of the ladder end.
ENDS = (WINDOW, 2 * WINDOW, 4 * WINDOW)
LONGEST = max(ENDS)
# Positions of the reference's tables.
POSITIONS = 2 * LONGEST
# Fewer tokens a step than most prompts have: they are prefilled in chunks.
STEP = 96
# Largest error in log-probability, and the smallest effect of a set on it, or a wrong set could pass.
TOLERANCE, VISIBLE = 1e-3, 2e-2
# Prompts and the tokens after them: short, through both limits, at each limit and one past it, long.
CASES = [(20, 12), (60, 72), (64, 6), (65, 6), (127, 6), (200, 20)]
# The same within the window.
WITHIN = [(20, 12), (40, 20), (50, 14)]

# A prompt, its continuation, and the log-probability of each token of that.
Run = tuple[list[int], list[int], list[float]]
# For each sequence, the log-probability of every token but the first, and that of the best one in its place.
Scores = dict[tuple[int, ...], list[tuple[float, float]]]


@dataclass(frozen=True)
class Compared:
    """How a ladder's tokens compare with those of a reference."""

    error: float
    place: str
    visible: float


def measure(name: str, changes: Mapping[str, Any] | None = None, stage: Callable[[str], object] = print) -> Line:
    """One architecture's result, but for its seconds.

    Args:
        name: The architecture.
        changes: Of its recipe.
        stage: Called with each stage that begins.
    """
    recipe = replace(RECIPES.get(name, Recipe()), **changes or {})
    ladder = recipe.ladder if isinstance(recipe.ladder, Mapping) else {"ladder": recipe.ladder}
    line: Line = {"architecture": name, "kind": architectures()[name], "tokens": 0, "cached": 0}
    line["replaced"] = ", ".join(recipe.replaced).replace("_", " ")
    with tempfile.TemporaryDirectory() as folder:
        line["verdict"], line["reason"] = _judged(line, recipe, Path(folder), ladder, stage)
    return {key: line[key] for key in results.KEYS if line.get(key) not in ("", None)}


def _judged(
    line: Line, recipe: Recipe, folder: Path, ladder: Mapping[str, Any], stage: Callable[[str], object]
) -> tuple[str, str]:
    """The verdict and its reason; ``line`` gets what was measured on the way."""
    try:
        model, why = checkpoint.make(line["architecture"], recipe, folder)
    except Exception as error:
        return NO_CHECKPOINT, _sentence(error)
    for module in recipe.replaced:
        importlib.import_module(f"tests.matrix.kernels.{module}").install()
    stage(results.STOCK)
    arguments = {"model": str(folder), **ENGINE, "max_num_batched_tokens": STEP, **recipe.engine}
    arguments["skip_tokenizer_init"] = recipe.tokens is None
    if line["kind"] == WRAPPED:
        # Else vLLM asks for the processors of images and sounds, which text-only requests do not need.
        arguments.setdefault("language_model_only", True)
    try:
        within, model, why = _stock(arguments, model, why)
    except Exception as error:
        stops = _sentence(error)
        if refusal := _refusal({**arguments, "max_model_len": LONGEST}, ladder):
            line["stock"] = f"{results.STOPS}{stops}"
            return REFUSED, refusal
        return NOT_ON_CPU, stops
    line["stock"] = f"runs, alone ({why})"
    if model is not None:
        off, _ = max(HuggingFace(model, {WINDOW: 1.0}).worst_of(*each) for each in within)
        line["stock"] = f"{off:.1e} off transformers within the window"
    stage(results.LADDER)
    # The attempt above may have left the weights to vLLM.
    beyond = {**arguments, "max_model_len": LONGEST}
    try:
        with engine(**beyond, additional_config={"ropeswitch": dict(ladder)}) as llm:
            first, _ = run(llm, CASES)
            second, line["cached"] = run(llm, CASES)
    except (UnsupportedError, FactorError) as error:
        return REFUSED, _sentence(error)
    except Exception as error:
        return _stopped(line, beyond, error)
    runs = [*first, *second]
    line["tokens"] = sum(len(output) for _, output, _ in runs)
    factors = {end: end / recipe.trained.get("original_max_position_embeddings", WINDOW) for end in ENDS}
    compared = None
    if model is not None:
        line["oracle"] = "transformers"
        compared = _with_transformers(HuggingFace(model, factors, recipe.trained), runs)
    if compared is None or not compared.error < TOLERANCE:
        stage(results.REFERENCE)
        reference = f"stock vLLM with {'static YaRN' if recipe.forced is None else 'forced frequencies'}"
        try:
            with rotation_in_torch():
                compared = _with_stock(arguments, factors, recipe, runs)
                batch = compared.error if compared.error < TOLERANCE else _batch_of_stock(arguments)
        except Exception as error:
            return NOT_COMPARED, f"{reference} stops: {_sentence(error)}"
        line["oracle"] = reference
        if not batch < TOLERANCE:
            return (
                NOT_ON_CPU,
                f"stock vLLM gives a batch other log-probabilities than each request alone: {batch:.2g} off",
            )
    line["error"], line["visible"] = (float(f"{value:.2g}") for value in (compared.error, compared.visible))
    if not compared.visible > VISIBLE:
        return NOT_COMPARED, f"{line['oracle']} is no reference: its sets differ by {compared.visible:.2g} only"
    if not compared.error < TOLERANCE:
        return DIFFERS, f"{compared.place}: log-probability {compared.error:.2g} off"
    return EXACT, ""


def _stock(arguments: dict[str, Any], model: Any, why: str) -> tuple[list[Run], Any, str]:
    """What stock vLLM gives within the window, the model of transformers to compare with or None, and why None.

    If vLLM cannot load what transformers saved, ``arguments`` get weights that are made in vLLM.
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
    """Why the config and its ladder are refused, whatever stock vLLM runs on; nothing if they are not."""
    try:
        configure_from_key(EngineArgs(**arguments, additional_config={"ropeswitch": dict(ladder)}))
    except (UnsupportedError, FactorError) as error:
        return _sentence(error)
    except Exception as error:
        traceback.print_exception(error)
    return ""


def _within(arguments: Mapping[str, Any]) -> list[Run]:
    with engine(**{**arguments, "max_model_len": WINDOW}) as llm:
        return run(llm, WITHIN)[0]


def _stopped(line: Line, arguments: Mapping[str, Any], error: Exception) -> tuple[str, str]:
    """Whose fault it is that an engine with a ladder stopped: stock vLLM gets the same requests."""
    reason = _sentence(error)
    try:
        with engine(**arguments, hf_overrides=static_yarn({}, 1, POSITIONS)) as llm:
            run(llm, CASES)
            run(llm, CASES)
    except Exception as stock:
        line["stock"] = ""
        return NOT_ON_CPU, f"stops at longer requests: {_sentence(stock)}"
    return DIFFERS, f"the engine stopped: {reason}"


def _with_transformers(oracle: HuggingFace, runs: Sequence[Run]) -> Compared | None:
    """The comparison; None if transformers' model has no frequencies that could be forced."""
    if not oracle.buffers:
        return None
    error, place = max(oracle.worst_of(*each) for each in runs)
    return Compared(error, place, oracle.closest_sets(runs[-1][0]))


def _with_stock(
    arguments: Mapping[str, Any], factors: Mapping[int, float], recipe: Recipe, runs: Sequence[Run]
) -> Compared:
    """The comparison of a ladder with stock vLLM, of which one engine for each set scores every sequence alone and whole."""
    scored = {}
    for end, factor in factors.items():
        if recipe.forced is None:
            scored[end] = _scores(arguments, static_yarn(recipe.trained, factor, POSITIONS), runs)
            continue
        with forced(recipe.forced, factor, recipe.trained, POSITIONS):
            scored[end] = _scores(arguments, static_yarn({}, 1, POSITIONS), runs)
    # Of the longest request's tokens just above the window: stock vLLM's table of the second set ends soon after.
    prompt, output, _ = runs[-1]
    rows = torch.tensor(
        [[of_token for of_token, _ in scored[end][(*prompt, *output)][WINDOW : ENDS[1] - 1]] for end in factors]
    )
    visible = min(float((a - b).abs().max()) for i, a in enumerate(rows) for b in rows[:i])
    return Compared(*_worst(runs, scored), visible)


def _batch_of_stock(arguments: Mapping[str, Any]) -> float:
    """The largest error of stock vLLM's batch within the window, compared with its scores of each sequence alone."""
    within = _within(arguments)
    return _worst(within, {WINDOW: _scores(arguments, static_yarn({}, 1, POSITIONS), within)})[0]


def _scores(arguments: Mapping[str, Any], overrides: Callable[[Any], Any], runs: Sequence[Run]) -> Scores:
    """What stock vLLM has for every token of each run's sequence, computed alone."""
    whole = {"max_model_len": POSITIONS, "max_num_batched_tokens": POSITIONS, "hf_overrides": overrides}
    scored: Scores = {}
    with tables_of(POSITIONS), engine(**{**arguments, **whole}) as llm:
        for tokens in {(*prompt, *output) for prompt, output, _ in runs}:
            params = greedy(1, prompt_logprobs=1)
            (done,) = llm.generate([{"prompt_token_ids": list(tokens)}], params, use_tqdm=False)
            places = zip(tokens[1:], done.prompt_logprobs[1:], strict=True)
            scored[tokens] = [(e[token].logprob, max(each.logprob for each in e.values())) for token, e in places]
    return scored


def _worst(runs: Sequence[Run], scored: Mapping[int, Scores]) -> tuple[float, str]:
    """The largest error of any run, and where; ``scored`` are the scores by the longest sequence of each set, rising."""
    found = (0.0, "")
    for prompt, output, log_probs in runs:
        for place, log_prob in enumerate(log_probs, start=len(prompt)):
            scores = scored[next(end for end in scored if place <= end)][(*prompt, *output)]
            error = error_of(log_prob, *scores[place - 1])
            found = max(found, (error, f"token {place} after a prompt of {len(prompt)}"))
    return found


@contextmanager
def engine(**arguments: Any) -> Iterator[LLM]:
    """An engine in this process, stopped afterwards."""
    llm = LLM(**arguments)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def run(llm: LLM, cases: Sequence[tuple[int, int]]) -> tuple[list[Run], int]:
    """All cases in one batch; and how many prompt tokens came from the prefix cache."""
    token_lists = prompts([length for length, _ in cases], TEXT_VOCAB)
    params = [greedy(count) for _, count in cases]
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in token_lists], params, use_tqdm=False)
    runs = [(prompt, *first_choice(output.outputs[0])) for prompt, output in zip(token_lists, outputs, strict=True)]
    return runs, sum(output.num_cached_tokens or 0 for output in outputs)


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
