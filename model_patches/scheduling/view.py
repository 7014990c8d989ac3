"""The planner's view of the engine before a step: an immutable snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter

import numpy as np
from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.step_cost import STEP, Load

_PREFILLS = attrgetter("is_prefill_chunk")
_COMPUTED = attrgetter("num_computed_tokens")
_PLACEHOLDERS = attrgetter("num_output_placeholders")
# Reads the list itself: ``num_tokens`` is a property, which takes twice as long for a thousand requests.
_TOKENS = attrgetter("_all_token_ids")
_DRAFTS = attrgetter("spec_token_ids")


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine's limits, which do not change while it runs.

    Attributes:
        tokens: Maximum tokens per step.
        chunk: Maximum tokens of one prefill per step.
        least_chunk: Minimum tokens of a chunk; below it the engine schedules none.
        chunked: Whether a prompt may be computed in several steps.
        drafts: Draft tokens per request and step.
        block: Tokens per KV cache block.
        blocks: KV cache blocks of the engine.
        max_loras: Maximum LoRA adapters per step, or None without LoRA.
        whole_items: Whether an image or other item of a prompt must be computed in one step
            (``--disable-chunked-mm-input``, which vLLM sets on GPUs for models whose images attend to all of themselves).
    """

    tokens: int
    chunk: int
    least_chunk: int
    chunked: bool
    drafts: int
    block: int
    blocks: int
    max_loras: int | None
    whole_items: bool


@dataclass(frozen=True, slots=True)
class StepView:
    """The engine's state before a step.

    Attributes:
        now: Seconds on the scheduler's clock.
        step: Number of the last step.
        unpaused: Whether waiting requests may start.
        running: Running requests, including the background request.
        prefills: Running requests with prompt tokens to compute, excluding the background request.
        holding: Waiting requests that hold KV cache blocks.
        inflight_prefills: Every request that upstream counts as a prefill in flight.
        in_order: Whether the running requests are known to be sorted by computed tokens, largest first.
        decodes: Load of one step of the decoding requests alone.
        slots: Number of requests that may start.
        free_blocks: Free KV cache blocks beyond the watermark.
        reserved_blocks: Blocks that the prefills in flight still need.
    """

    now: float
    step: int
    unpaused: bool
    running: Sequence[Request]
    prefills: Sequence[Request]
    holding: Sequence[Request]
    inflight_prefills: Sequence[Request]
    in_order: bool
    decodes: Load
    slots: int
    free_blocks: int
    reserved_blocks: int


def split(running: Sequence[Request], background: Request | None) -> tuple[list[Request], Sequence[Request]]:
    """Split running requests into those with prompt tokens to compute and those decoding, both without ``background``."""
    prefills = list(compress(running, map(_PREFILLS, running)))
    if not prefills and background is None:
        return prefills, running
    decodes = [each for each in running if not each.is_prefill_chunk and each is not background]
    return [each for each in prefills if each is not background], decodes


def computed_tokens(requests: Sequence[Request]) -> list[int]:
    """Return the number of computed tokens of each request."""
    return list(map(_COMPUTED, requests))


def single_load(computed: Sequence[int]) -> Load:
    """Return the load of a step that computes one token of each decoding request, given their computed tokens."""
    count, total = len(computed), sum(computed)
    return Load(1.0, count, count, total + count / 2, total + count)


def decode_load(decodes: Sequence[Request], computed: Sequence[int]) -> Load:
    """Return the load of a step of decoding requests with any number of tokens to compute; those with none do not count."""
    before = np.array(computed, dtype=np.int64)
    known = lengths(decodes)
    for each in (map(len, map(_DRAFTS, decodes)), map(_PLACEHOLDERS, decodes)):
        known += np.fromiter(each, np.int64, len(decodes))
    return STEP + chunks(known - before, before)


def chunks(tokens: "np.ndarray", before: "np.ndarray") -> Load:
    """Return the load of computing ``tokens[i]`` tokens after ``before[i]`` others, for every i with ``tokens[i] > 0``."""
    some = tokens > 0
    tokens, before = tokens[some], before[some]
    products = float((tokens * (before + tokens / 2)).sum())
    return Load(0.0, len(tokens), int(tokens.sum()), products, int((before + tokens).sum()))


def lengths(requests: Sequence[Request]) -> "np.ndarray":
    """Return the number of known tokens of each request, (requests,)."""
    return np.fromiter(map(len, map(_TOKENS, requests)), np.int64, len(requests))
