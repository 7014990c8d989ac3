"""Batches of prompts on a running engine, whose answers are compared with the reference."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from tests.exactness.engines import first_choice, greedy, prompts, run, scheduler_of
from tests.exactness.reference import Oracle

# Room for 17 blocks of 32 tokens: layers, keys and values, heads, values per head, bytes.
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 17 * 32 * 2 * 2 * 2 * 32 * 4, "max_model_len": 480}
# Short, far from the limit of 64 on both sides, at it, one past it, and crossing it at every distance.
LENGTHS = [5, 64, 65, 150, 63, 40, 200, 62, 60, 50]
# Starts engines: a fixture of ``conftest.py``.
Start = Callable[..., LLM]


def full_but(soon: Collection[str], names: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which those in ``soon`` are not among the long tests."""
    return [name if name in soon else pytest.param(name, marks=pytest.mark.full) for name in names]


def check(
    llm: LLM, reference: Oracle, token_lists: list[list[int]], params: SamplingParams | list[SamplingParams]
) -> None:
    """Check the answers to one batch, token by token; each is as long as it may be."""
    limits = [each.max_tokens for each in (params if isinstance(params, list) else [params] * len(token_lists))]
    answers = run(llm, token_lists, params)
    for prompt, limit, (tokens, log_probs) in zip(token_lists, limits, answers, strict=True):
        assert len(tokens) == limit
        reference.check(prompt, tokens, log_probs)


def add(llm: LLM, token_lists: Iterable[list[int]], params: SamplingParams, prefix: str = "") -> None:
    """Add requests that are named by their number, after ``prefix``."""
    for index, tokens in enumerate(token_lists):
        llm.llm_engine.add_request(f"{prefix}{index}", {"prompt_token_ids": tokens}, params)


def finished(llm: LLM) -> dict[str, Any]:
    """One step; the outputs of requests that it ends, by name."""
    return {output.request_id: output for output in llm.llm_engine.step() if output.finished}


def finish(
    llm: LLM, done: dict[str, Any] | None = None, after_step: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Run the engine until it is idle; returns ``done`` with the outputs that came."""
    done = {} if done is None else done
    while llm.llm_engine.has_unfinished_requests():
        done |= finished(llm)
        after_step()
    return done


def check_outputs(reference: Oracle, token_lists: list[list[int]], done: Mapping[str, Any], prefix: str = "") -> None:
    for index, tokens in enumerate(token_lists):
        reference.check(tokens, *first_choice(done[f"{prefix}{index}"].outputs[0]))


def check_aborting(
    llm: LLM, reference: Oracle, token_lists: list[list[int]], count: int, leaves: Callable[[Any], bool]
) -> set[str]:
    """Check streamed answers, of which every second one is aborted in the first step in which ``leaves`` says so.

    Returns:
        The aborted requests, by the index of their prompt.
    """
    engine, scheduler = llm.llm_engine, scheduler_of(llm)
    received: dict[str, Any] = {str(i): ([], []) for i in range(len(token_lists))}
    add(llm, token_lists, greedy(count, output_kind=RequestOutputKind.DELTA))
    aborted: set[str] = set()
    while engine.has_unfinished_requests():
        for output in engine.step():
            for kept, new in zip(received[output.request_id], first_choice(output.outputs[0]), strict=True):
                kept.extend(new)
        for request in list(scheduler.requests.values()):
            key = request.request_id.split("-")[0]
            if key not in aborted and leaves(request) and int(key) % 2 == 0:
                aborted.add(key)
                engine.abort_request([key])
    for (key, answer), prompt in zip(received.items(), token_lists, strict=True):
        reference.check(prompt, *answer)
        assert key in aborted or len(answer[0]) == count
    return aborted


def check_batch(llm: LLM, reference: Oracle, lengths: list[int] = LENGTHS, max_tokens: int = 16) -> None:
    check(llm, reference, prompts(lengths), greedy(max_tokens))
