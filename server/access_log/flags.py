"""The flags of the access log, and what the processes that serve are told of them."""

import argparse
from dataclasses import dataclass
from typing import Any

from ropeswitch.server.errors import UsageError

CHOICES = ("json", "all", "off")


@dataclass(frozen=True)
class AccessLogConfig:
    """What the flags say.

    Attributes:
        everything: Whether probes and ``/metrics`` are logged too.
        prompts: Whether lines have the prompts.
        left_out: Paths that are not logged.
    """

    everything: bool
    prompts: bool
    left_out: frozenset[str] = frozenset()


def add(parser: Any) -> None:
    """Add the flags to ``vllm serve``'s parser."""
    group = parser.add_argument_group("Access log", "What is logged of each request.")
    group.add_argument(
        "--access-log",
        choices=CHOICES,
        default="json",
        help="A JSON line for each HTTP request; all has probes and /metrics too, off leaves it to uvicorn.",
    )
    group.add_argument("--log-prompts", action="store_true", help="Write the prompts into the access log.")


def take(args: argparse.Namespace) -> AccessLogConfig | None:
    """Read the flags; with an access log of ours uvicorn's is turned off, so that a request is logged once.

    Args:
        args: What ``vllm serve``'s parser made of the command line and of a ``--config`` file.

    Returns:
        None without an access log.

    Raises:
        UsageError: for prompts without a log to write them into.
    """
    if args.access_log == "off":
        if args.log_prompts:
            raise UsageError("--log-prompts: would be ignored with --access-log off")
        return None
    args.disable_uvicorn_access_log = True
    left_out = (path.strip() for path in (args.disable_access_log_for_endpoints or "").split(","))
    return AccessLogConfig(args.access_log == "all", args.log_prompts, frozenset(left_out) - {""})
