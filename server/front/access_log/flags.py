"""Flags for the access log, and the config built from them for the API server processes."""

import argparse
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import UsageError

CHOICES = ("json", "all", "off")


@dataclass(frozen=True)
class AccessLogConfig:
    """Values of the flags.

    Attributes:
        everything: Whether to log probes and ``/metrics`` too.
        prompts: Whether lines include the prompts.
        left_out: Paths that are not logged.
    """

    everything: bool
    prompts: bool
    left_out: frozenset[str] = frozenset()


def add(parser: Any) -> None:
    """Add the flags to ``vllm serve``'s parser."""
    group = parser.add_argument_group("Access log", "One JSON line for each HTTP request.")
    group.add_argument(
        "--access-log",
        choices=CHOICES,
        default="json",
        help="Write a JSON line for each HTTP request; all adds probes and /metrics, off uses uvicorn's log.",
    )
    group.add_argument("--log-prompts", action="store_true", help="Add the prompts to the access log.")


def check(args: argparse.Namespace) -> None:
    """Refuse ``--log-prompts`` without an access log.

    Raises:
        UsageError: naming both flags.
    """
    if args.access_log == "off" and args.log_prompts:
        raise UsageError("--log-prompts: would be ignored with --access-log off; leave one of the two out")


def take(args: argparse.Namespace) -> AccessLogConfig | None:
    """Build the config; turns uvicorn's access log off if ours is on, so that each request is logged once.

    Args:
        args: Parsed command line and ``--config`` file of ``vllm serve``.

    Returns:
        The config; None with ``--access-log off``.

    Raises:
        UsageError: as :func:`check`.
    """
    check(args)
    if args.access_log == "off":
        return None
    args.disable_uvicorn_access_log = True
    left_out = (path.strip() for path in (args.disable_access_log_for_endpoints or "").split(","))
    return AccessLogConfig(args.access_log == "all", args.log_prompts, frozenset(left_out) - {""})
