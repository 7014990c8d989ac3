"""Engines for the tests: vLLM's own ``LLM`` with a ladder and, unless a test says otherwise, all of our parts."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from vllm import LLM, SamplingParams
from vllm.v1.request import Request

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.parts import PARTS
from tests.exactness import plugin_engine
from tests.exactness.preloaded import COLLECTIVES, GLOO
from tests.exactness.reference import Oracle

ENGINE: dict[str, Any] = plugin_engine.ENGINE | {"disable_log_stats": True}
# Room for 17 blocks of 32 tokens: layers, keys and values, heads, values per head, bytes.
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 17 * 32 * 2 * 2 * 2 * 32 * 4, "max_model_len": 480}
# Short, far from the limit of 64 on both sides, at it, one past it, and crossing it at every distance.
LENGTHS = [5, 64, 65, 150, 63, 40, 200, 62, 60, 50]
# Starts engines: a fixture of ``conftest.py``.
Start = Callable[..., LLM]


def full_but(soon: Collection[str], names: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which those in ``soon`` are not among the long tests."""
    return [name if name in soon else pytest.param(name, marks=pytest.mark.full) for name in names]


def engine(
    folder: Path,
    ladder: FactorLadder | Mapping[str, Any] | None = None,
    *,
    angles: str = "exact",
    policy: str = "length",
    **changes: Any,
) -> LLM:
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
    with patch.dict(os.environ, variables):
        return LLM(**arguments, additional_config={KEY: key})


def prompts(lengths: list[int], vocabulary: int = 384, seed: int = 1) -> list[list[int]]:
    """Random token ids, without the special ones, of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(
        **(
            {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 1, "detokenize": False}
            | changes
        )
    )


def run(llm: LLM, token_lists: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[Any]:
    """All prompts in one batch; the outputs in order, as (tokens, log-probabilities) of the first choice."""
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in token_lists], params, use_tqdm=False)
    return [first_choice(output.outputs[0]) for output in outputs]


def check(
    llm: LLM, reference: Oracle, token_lists: list[list[int]], params: SamplingParams | list[SamplingParams]
) -> None:
    """Check the answers to one batch, token by token; each is as long as it may be."""
    limits = [each.max_tokens for each in (params if isinstance(params, list) else [params] * len(token_lists))]
    answers = run(llm, token_lists, params)
    for prompt, limit, (tokens, log_probs) in zip(token_lists, limits, answers, strict=True):
        assert len(tokens) == limit
        reference.check(prompt, tokens, log_probs)


def check_batch(llm: LLM, reference: Oracle, lengths: list[int] = LENGTHS, max_tokens: int = 24) -> None:
    check(llm, reference, prompts(lengths), greedy(max_tokens))


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


def first_choice(output: Any) -> tuple[list[int], list[float]]:
    tokens = list(output.token_ids)
    return tokens, [entry[token].logprob for token, entry in zip(tokens, output.logprobs, strict=True)]
