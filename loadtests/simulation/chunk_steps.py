"""Alternatives to ropeswitch's scheduling of a next set's chunks, for comparison (docs/simulation.md)."""

from dataclasses import replace
from typing import Any

from vllm.v1.request import Request

from ropeswitch.model_patches.scheduling.decision import StepDecision


def own(scheduler: Any) -> None:
    """Alternate between a step with only a chunk of a next set and a step with only the decoding requests.

    Args:
        scheduler: A calibrated ``LengthAwareScheduler`` before its first step.
    """
    apply, chunk_ran = scheduler._apply, False

    def alternating(decision: StepDecision) -> None:
        nonlocal chunk_ran
        background = decision.background
        if background.tokens and not chunk_ran:
            decodes = {request for request in scheduler.running if request is not background.request}
            decision = replace(decision, held=decision.held | decodes, budget=0)
        elif background.tokens:
            decision = replace(decision, background=replace(background, tokens=0))
        chunk_ran = bool(decision.background.tokens)
        apply(decision)

    scheduler._apply = alternating


def captured(scheduler: Any, most: int) -> None:
    """Cut chunks of a next set so that a step has at most ``most`` tokens, provided its other requests have fewer.

    Args:
        scheduler: A calibrated ``LengthAwareScheduler`` before its first step.
        most: Tokens of the largest step with a CUDA graph.
    """
    next_set = scheduler.length_aware.next_set
    if next_set is None:
        return
    give = next_set._give

    def cut(request: Request, decode: Request, step: StepDecision) -> int:
        tokens: int = give(request, decode, step)
        if 0 < (room := most - step.budget) < tokens:
            next_set.tokens -= tokens - room
            return room
        return tokens

    next_set._give = cut
