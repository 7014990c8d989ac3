"""Flags of length-aware scheduling, and checks for vLLM flags that cannot be combined with it."""

import argparse
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import seconds
from ropeswitch.model_patches.switch.config.settings import MOST_STEP_SECONDS


def add(parser: Any) -> None:
    """Add the flags to ``vllm serve``'s parser."""
    group = parser.add_argument_group("Length-aware scheduling", "Plan steps by their predicted time.")
    group.add_argument(
        "--length-aware-scheduling",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Plan steps by predicted time and serve short work first, instead of vLLM's own order and chunks.",
    )
    group.add_argument(
        "--step-latency-target",
        type=seconds(MOST_STEP_SECONDS),
        metavar="SECONDS",
        help="Target time of a step while other requests wait; measured at startup unless given.",
    )


def check(args: argparse.Namespace) -> None:
    """Refuse a latency target that would be ignored.

    Raises:
        UsageError: naming the flag, its value and what to do.
    """
    if args.step_latency_target is not None and not args.length_aware_scheduling:
        raise UsageError(
            f"--step-latency-target: {args.step_latency_target:g} would be ignored with "
            "--no-length-aware-scheduling; leave one of the two out"
        )


def check_vllm(args: argparse.Namespace) -> None:
    """Refuse vLLM's flags that length-aware scheduling would ignore, or that would disable it; also :func:`check`.

    Args:
        args: Parsed command line and ``--config`` file of ``vllm serve``.

    Raises:
        UsageError: naming the flag, its value and what to do.
    """
    check(args)
    if not args.length_aware_scheduling:
        return
    if args.long_prefill_token_threshold_adaptive:
        raise UsageError(
            "--long-prefill-token-threshold-adaptive: True would be ignored, because length-aware scheduling sizes "
            "steps by time; leave it out or use --no-length-aware-scheduling"
        )
    # None, the default, lets vLLM choose by model.
    if args.enable_chunked_prefill is False:
        raise UsageError(
            "--enable-chunked-prefill: False turns off the chunks that length-aware scheduling needs; leave "
            "--no-enable-chunked-prefill out or use --no-length-aware-scheduling"
        )
