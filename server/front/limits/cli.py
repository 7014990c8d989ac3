"""``ropeswitch keys id``: prints the IDs of a file's keys, which the access log shows in place of the keys."""

import argparse
from typing import Any

from ropeswitch.server.front.limits.keys import key_id, numbered_keys


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command; ``func`` returns the exit code, and raises UsageError for a faulty file."""
    commands = subparsers.add_parser("keys", help="show which API key a line of the access log names").add_subparsers(
        metavar="COMMAND", required=True
    )
    parser = commands.add_parser("id", help="print the ID of each key in a file, with its line number, not the key")
    parser.add_argument("file", metavar="FILE", help="file of API keys or metrics keys, one per line")
    parser.set_defaults(func=_print_ids)


def _print_ids(args: argparse.Namespace) -> int:
    for number, digest in numbered_keys(args.file, "FILE"):
        print(f"{key_id(digest)}  line {number}")
    return 0
