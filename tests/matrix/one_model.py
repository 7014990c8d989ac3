"""Measures one architecture: stock vLLM against transformers, then a ladder against transformers or stock vLLM."""

import gc
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from vllm import LLM

from ropeswitch.factors.errors import FactorError
from ropeswitch.model_patches.switch.settings import UnsupportedError
from tests.exactness.engines import ENGINE, first_choice, greedy, prompts
from tests.matrix import made_up
from tests.matrix.oracle import HuggingFace, error_of, score, worst_of
from tests.matrix.recipes import RECIPES, WRAPPED, Recipe, architectures
from tests.matrix.tiny import TEXT_VOCAB, WINDOW, save, tiny
from tests.matrix.verdicts import DIFFERS, EXACT, LADDER, NO_CHECKPOINT, NOT_ON_CPU, REFUSED, STOCK

# The automatic ladder: unscaled within the window, then YaRN.
FACTORS = {WINDOW: 1.0, 2 * WINDOW: 2.0, 4 * WINDOW: 4.0}
LONGEST = max(FACTORS)
# Prompts and the tokens after them: short, through both limits, at each limit and one past it, long.
CASES = [(20, 12), (60, 72), (64, 6), (65, 6), (127, 6), (200, 20)]
WITHIN = [(20, 12), (40, 20), (50, 14)]
# Fewer than most prompts have: they are prefilled in chunks.
STEP = 96
TOLERANCE = 1e-3
# How much one token's log-probability must differ at least between any two sets, or a wrong set could pass.
VISIBLE = 2e-2


@dataclass(frozen=True)
class Result:
    """One line of the results file.

    Attributes:
        architecture: Its name in vLLM's registry.
        kind: Text, multimodal, or the Transformers backend.
        verdict: One of :data:`VERDICTS`.
        reason: Why it is not exact; nothing where it is.
        oracle: What the ladder was compared with.
        stock: How stock vLLM compares with transformers within the window, or its error.
        tokens: Generated tokens that were compared.
        error: The largest error in log-probability.
        visible: The largest difference in log-probability that the choice of a set makes, of the two sets that differ least.
        cached: Prompt tokens that the second run had from the prefix cache.
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
    seconds: float = 0.0


def measure(
    name: str, ladder: Mapping[str, Any] | None = None, stage: Callable[[str], object] = lambda _: None
) -> Result:
    """The verdict on one architecture.

    Args:
        name: The architecture.
        ladder: What replaces the automatic ladder, as in ``additional_config["ropeswitch"]``.
        stage: Called with each stage that begins.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        values = _measure(name, Path(folder), {"ladder": "auto"} if ladder is None else ladder, stage)
    return Result(name, architectures()[name], **values, seconds=round(time.monotonic() - start, 1))


def _measure(name: str, folder: Path, ladder: Mapping[str, Any], stage: Callable[[str], object]) -> dict[str, Any]:
    recipe = RECIPES.get(name, Recipe())
    try:
        model = _checkpoint(name, recipe, folder)
    except Exception as error:
        return {"verdict": NO_CHECKPOINT, "reason": _sentence(error)}
    stage(STOCK)
    arguments = {"model": str(folder), **ENGINE, "max_num_batched_tokens": STEP, **recipe.engine}
    if recipe.fields is not None:
        arguments["load_format"] = made_up.LOAD_FORMAT
    if architectures()[name] == WRAPPED:
        # Else vLLM asks for the processors of images and sounds, which text-only requests do not need.
        arguments["language_model_only"] = True
    try:
        with _engine(arguments | {"max_model_len": WINDOW}) as llm:
            within, _ = _run(llm, WITHIN)
    except Exception as error:
        return {"verdict": NOT_ON_CPU, "reason": _sentence(error)}
    found: dict[str, Any] = {"stock": "runs; transformers has no class to compare with"}
    stock = math.inf
    if model is not None:
        stock, _ = max(worst_of(HuggingFace(model, {WINDOW: 1.0}), *each) for each in within)
        found["stock"] = f"{stock:.1e} off transformers within the window"
    stage(LADDER)
    try:
        with _engine(arguments | {"max_model_len": LONGEST, "additional_config": {"ropeswitch": dict(ladder)}}) as llm:
            first, _ = _run(llm, CASES)
            second, cached = _run(llm, CASES)
    except (UnsupportedError, FactorError) as error:
        return found | {"verdict": REFUSED, "reason": _sentence(error)}
    except Exception as error:
        return found | {"verdict": DIFFERS, "reason": f"the engine stopped: {_sentence(error)}"}
    found |= {"tokens": sum(len(output) for _, output, _ in (*first, *second)), "cached": cached}
    oracle = HuggingFace(model, FACTORS) if stock < TOLERANCE else None
    if oracle is not None and oracle.buffers:
        found["oracle"] = "transformers"
        visible = oracle.closest_sets(first[-1][0])
        error, place = max(worst_of(oracle, *each) for each in (*first, *second))
    else:
        found["oracle"] = "stock vLLM with static YaRN"
        visible, error, place = _against_stock(arguments, (*first, *second))
    found |= {"error": float(f"{error:.2g}"), "visible": float(f"{visible:.2g}")}
    if error >= TOLERANCE:
        return found | {"verdict": DIFFERS, "reason": f"{place}: log-probability {error:.2g} off"}
    if not visible >= VISIBLE:
        return found | {
            "verdict": DIFFERS,
            "reason": f"the choice of a set changes log-probabilities by {visible:.2g} only",
        }
    return found | {"verdict": EXACT}


def _checkpoint(name: str, recipe: Recipe, folder: Path) -> Any:
    """Save the architecture's checkpoint and load it with transformers; None where transformers has no class."""
    if recipe.fields is not None:
        made_up.save(name, recipe.fields, folder)
        return None
    kind = getattr(transformers, recipe.family or name)
    save(kind, tiny(kind.config_class, recipe.config), folder, gain=recipe.gain)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    HuggingFace(model, {WINDOW: 1.0}).log_probs(list(range(3, WINDOW)))
    return model


Run = tuple[list[int], list[int], list[float]]


def _run(llm: LLM, cases: Sequence[tuple[int, int]]) -> tuple[list[Run], int]:
    """Each prompt with its continuation and log-probabilities, and the prompt tokens that the prefix cache had."""
    token_lists = prompts([length for length, _ in cases], TEXT_VOCAB)
    params = [greedy(count) for _, count in cases]
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in token_lists], params, use_tqdm=False)
    runs = [(prompt, *first_choice(output.outputs[0])) for prompt, output in zip(token_lists, outputs, strict=True)]
    return runs, sum(output.num_cached_tokens or 0 for output in outputs)


def _against_stock(arguments: Mapping[str, Any], runs: Sequence[Run]) -> tuple[float, float, str]:
    """How much the choice of a set changes, the largest error and its place, against stock vLLM with each set for all."""
    scored = {}
    for end, factor in FACTORS.items():
        yarn = (
            {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": WINDOW} if factor != 1 else {}
        )
        overrides = {"rope_parameters": _rope(arguments["model"]) | yarn, "max_position_embeddings": 2 * LONGEST}
        with _engine({**arguments, "max_model_len": 2 * LONGEST, "hf_overrides": overrides}) as llm:
            scored[end] = score(llm, [[*prompt, *output] for prompt, output, _ in runs])
    worst = (0.0, "")
    for number, (prompt, _, log_probs) in enumerate(runs):
        for place, log_prob in enumerate(log_probs, start=len(prompt)):
            end = next(end for end in FACTORS if place <= end)
            of = scored[end][number][place - 1]
            worst = max(
                worst, (error_of(log_prob, of.of_token, of.best), f"token {place} after a prompt of {len(prompt)}")
            )
    # Of the last request's tokens that were generated in its longest set.
    begin = len(runs[-1][0]) - 1
    rows = [torch.tensor([each.of_token for each in scored[end][-1][begin:]]) for end in FACTORS]
    visible = min(float((a - b).abs().max()) for i, a in enumerate(rows) for b in rows[:i])
    return visible, *worst


def _rope(folder: str) -> dict[str, Any]:
    config = transformers.AutoConfig.from_pretrained(folder).get_text_config()
    return dict(config.rope_parameters)


@contextmanager
def _engine(arguments: Mapping[str, Any]) -> Iterator[LLM]:
    """An engine in this process, stopped afterwards."""
    llm = LLM(**arguments)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _sentence(error: BaseException) -> str:
    """An error in one line without what differs from run to run."""
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
