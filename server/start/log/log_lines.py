"""Selects the lines to show from the log of vLLM and its libraries: none during startup, warnings and errors after it."""

import re

# Prefix of our own lines, which every process of the server may write; they are always shown.
OURS = "ropeswitch: "
# The head of a line of vLLM's log: process, level, time and place.
_HEAD = re.compile(
    r"\([^()]+ pid=\d+\) (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] "
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Lines to hide from outside vLLM's loggers: uvicorn's, and those that libraries print when a process exits.
_LEFTOVERS = re.compile(
    r"INFO:     |nanobind: |See https://nanobind| - leaked | - \.\.\. skipped remainder|"
    r"\S*/resource_tracker\.py:\d+: UserWarning: |  warnings\.warn\('resource_tracker: "
)
# Warnings to hide: the shutdown steps of a busy machine, and those of a port that several API servers share.
_SHUTDOWN = re.compile(r"\] \[shutdown\] |\[launcher\.py:\d+\] ")


class LogLines:
    """The log of one server, processed as it is written.

    Attributes:
        serving: Whether requests are accepted; set by the caller.
        last: Text of the last line, which may be unfinished, as progress bars are.
    """

    def __init__(self) -> None:
        self.serving = False
        self.last = ""
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines to show of the bytes written since the last call; empty lines are left out."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        # The last one has no end yet, as a progress bar's, which is rewritten.
        lines = [_text(part) for part in [*whole, self._rest]]
        for line in filter(None, lines):
            self.last = " ".join(_HEAD.sub("", line).split())
        return [line for line in lines[:-1] if line and self._shown(line)]

    def _shown(self, line: str) -> bool:
        if line.startswith(OURS) or not self.serving:
            return line.startswith(OURS)
        if head := _HEAD.search(line):
            warns = head["level"] == "WARNING" and not _SHUTDOWN.search(line)
            return warns or head["level"] in ("ERROR", "CRITICAL")
        return not _LEFTOVERS.match(line)


def _text(part: bytes) -> str:
    """Return the last text of a rewritten line; vLLM ends the lines of one record with CR and LF."""
    return _ANSI.sub("", part.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace"))
