"""Builds the startup lines that name the versions, the model and the ladder."""

from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import version

from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.model_patches.switch.config.settings import RESERVE, RESERVES
from ropeswitch.model_patches.switch.releases import described

# Maximum factor sets to list; of more, the first ones and the last are listed.
MOST_SETS = 5


def versions() -> str:
    """Return the versions of ropeswitch and vLLM, read without importing vLLM."""
    return f"version {version('ropeswitch')}, {described()}"


def summary(args: Namespace, made: MadeLadder, notes: Sequence[str]) -> list[str]:
    """Return lines for the ladder (at most :data:`MOST_SETS` sets), the policy, other choices (``notes``) and model."""
    names = f", served as {', '.join(args.served_model_name)}" if args.served_model_name else ""
    head, title, *rest = made.lines(args.max_model_len)
    count = len(made.ladder.sets)
    rows, ladder_notes = rest[:count], rest[count:]
    if count > MOST_SETS:
        hidden = count - MOST_SETS + 1
        rows = [*rows[: MOST_SETS - 2], f"  ... {hidden} more; GET /v1/rope lists all", rows[-1]]
    policy = [RESERVES] if args.ladder_policy == RESERVE else []
    return [head, title, *rows, *ladder_notes, *policy, *notes, f"starting the engine for {args.model}{names}"]
