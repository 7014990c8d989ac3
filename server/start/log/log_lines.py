"""Selects the lines to show from the log of vLLM and its libraries: none during startup, warnings and errors after it."""

import re

# Prefix of our own lines, which every process of the server may write; they are always shown.
OURS = "ropeswitch: "
# The head of a line of vLLM's log: process, level, time and place.
_HEAD = re.compile(
    r"\([^()]+ pid=\d+\) (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] "
)
# A change of colour.
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Lines to hide from outside vLLM's loggers: uvicorn's, and those that libraries print when a process exits.
_LEFTOVERS = re.compile(
    r"INFO:     |nanobind: |See https://nanobind| - leaked | - \.\.\. skipped remainder|"
    r"\S*/resource_tracker\.py:\d+: UserWarning: |  warnings\.warn\('resource_tracker: "
)
# Warnings to hide: the shutdown steps of a busy machine, and those of a port that several API servers share.
_SHUTDOWN = re.compile(r"\] \[shutdown\] |\[launcher\.py:\d+\] ")


def is_shown(line: str, serving: bool) -> bool:
    """Whether to show a line of the log, before or while the server accepts requests."""
    if line.startswith(OURS) or not serving:
        return line.startswith(OURS)
    if head := _HEAD.search(line):
        warns = head["level"] == "WARNING" and not _SHUTDOWN.search(line)
        return warns or head["level"] in ("ERROR", "CRITICAL")
    return not _LEFTOVERS.match(line)


def text_of(line: str) -> str:
    """Return the text of a line of the log, without its head."""
    return " ".join(_HEAD.sub("", line).split())
