"""Engines for the tests: vLLM's own ``LLM`` with a ladder and, unless a test says otherwise, all of our parts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from vllm import LLM, SamplingParams
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.v1.request import Request

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.parts import PARTS
from tests.exactness import plugin_engine
from tests.exactness.plugin_engine import first_choice
from tests.exactness.preloaded import COLLECTIVES, GLOO

ENGINE: dict[str, Any] = plugin_engine.ENGINE | {"disable_log_stats": True}


def engine(
    folder: Path, ladder: FactorLadder | Mapping[str, Any] | None = None, *, angles: str = "exact", policy: str = "length",
    **changes: Any,
) -> LLM:  # fmt: skip
    """Start an engine; ``changes`` are vLLM's own engine arguments.

    A mapping as ``ladder`` is the whole value of ``additional_config["ropeswitch"]``; None is the config's own ladder.
    """
    if isinstance(ladder, Mapping):
        key = dict(ladder)
    else:
        source = {"ladder": "auto"} if ladder is None else {"sets": ladder.to_json()}
        key = source | {"angles": angles, "policy": policy, "parts": list(PARTS)}
    arguments = ENGINE | {"model": str(folder)} | changes
    variables = {COLLECTIVES: os.environ.get(COLLECTIVES, GLOO)}
    if arguments["enforce_eager"]:
        variables["TORCH_COMPILE_DISABLE"] = "1"
    # vLLM inspects a class in a new process, so that CUDA is not initialized: ten seconds, where no cache has the result.
    inspected = (lambda look: look()) if current_platform.is_cpu() else registry._run_in_subprocess
    with patch.dict(os.environ, variables), patch.object(registry, "_run_in_subprocess", inspected):
        return LLM(**arguments, additional_config={KEY: key})


def prompts(lengths: list[int], vocabulary: int = 384, seed: int = 1) -> list[list[int]]:
    """Random token ids, without the special ones, of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    values = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 1, "detokenize": False}
    return SamplingParams(**values | changes)


def generate(llm: LLM, token_lists: list[list[int]], params: Any, **more: Any) -> list[Any]:
    """All prompts in one batch; vLLM's outputs in order."""
    return llm.generate([{"prompt_token_ids": tokens} for tokens in token_lists], params, use_tqdm=False, **more)


def run(llm: LLM, token_lists: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[Any]:
    """All prompts in one batch; the outputs in order, as (tokens, log-probabilities) of the first choice."""
    return [first_choice(output.outputs[0]) for output in generate(llm, token_lists, params)]


def scheduler_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def worker_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def preemptions(scheduler: Any) -> list[Request]:
    """The requests that the scheduler preempts from now on, switches of sets included, one entry for each time."""
    preempted: list[Request] = []
    upstream = scheduler._preempt_request

    def preempt(request: Request, *args: Any, **kwargs: Any) -> None:
        preempted.append(request)
        upstream(request, *args, **kwargs)

    scheduler._preempt_request = preempt
    return preempted
