"""Selects the lines to show from the log of vLLM and its libraries.

During startup, warnings are shown, and the other lines indicate the stage. Once the server is running, every line is shown
except vLLM's INFO lines, whose figures are in ``/metrics``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Prefix of our own lines, which every process of the server may write.
OURS = "ropeswitch: "
# Maximum warnings to show during startup.
MOST_WARNINGS = 3
_ENTRY = re.compile(
    r"(?P<head>\((?P<process>[^()]+) pid=\d+\) (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\]) (?P<text>.*)"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_HIDDEN_LEVELS = ("DEBUG", "INFO")

# Patterns of vLLM's log lines and the stages that they begin. The text of a stage may refer to groups of its pattern.
STAGES = (
    ("Starting to load model", "loading weights"),
    (r"checkpoint shards: +\d+% Completed \| (?P<done>\d+)/(?P<all>\d+)", "loading weights: {done} of {all} files"),
    ("Dynamo bytecode transform time", "compiling the model"),
    ("Warming up model for the compilation", "compiling the model"),
    (r"KV cache size: (?P<tokens>[\d,]+) tokens", "warming up, with a KV cache of {tokens} tokens"),
    (r"Capturing CUDA graphs.*?(?P<done>\d+)/(?P<all>\d+)", "capturing CUDA graphs: {done} of {all}"),
)
_STAGES = tuple((re.compile(pattern), text) for pattern, text in STAGES)

# Warnings of every start that require no action.
NOISE = (
    # CPU builds
    "not found in LD_PRELOAD",
    "CPU backend doesn't allow to use",
    "Triton is not installed",
    "doesn't include CPU backend",
    "Model Runner V2 requires Triton",
    "Reset SSM cache type",
    # a fallback with the same result, on CPUs without a oneDNN kernel
    "Failed to create oneDNN linear",
    # a limit that is high enough
    r"Found ulimit of \d{5}",
    # settings of ropeswitch or of the model
    "Using custom scheduler class",
    "Enforce eager set",
    "Inductor compilation was disabled",
    "Default vLLM sampling parameters have been overridden",
    "requires system-first ordering",
    # normal for several API servers, which share a port and report our figures
    "is used by process .* launched with command",
    "api_server_count more than 1; disabling stats logging",
    # weights in a different number format from the served one
    "Attempted to load weight",
    # a cache that is rebuilt
    "Compiling model again due to a load failure",
)
_NOISE = re.compile("|".join(NOISE))
# Prefix of shutdown steps, some of which are warnings on a busy machine.
SHUTDOWN = "[shutdown] "
# Lines from outside vLLM's loggers: uvicorn's, and those that libraries print when a process exits.
_LEFTOVERS = re.compile(
    r"INFO:     |nanobind: |See https://nanobind| - leaked | - \.\.\. skipped remainder|"
    r"\S*/resource_tracker\.py:\d+: UserWarning: |  warnings\.warn\('resource_tracker: "
)


@dataclass(frozen=True)
class Entry:
    """A line of vLLM's log.

    Attributes:
        head: Process, level, time and place; equal for the lines of one record.
        level: Its level's name.
        text: One line of the message.
    """

    head: str
    level: str
    text: str


def entry(line: str) -> Entry | None:
    """Return the parts of a line of vLLM's log; None for other lines."""
    match = _ENTRY.search(line)
    return Entry(match["head"], match["level"], match["text"]) if match else None


def stage(line: str) -> str | None:
    """Return the stage of the start that a line indicates, or None."""
    for pattern, text in _STAGES:
        if match := pattern.search(line):
            return text.format(**match.groupdict())
    return None


class LogLines:
    """The log of one server, processed as it is written.

    Attributes:
        serving: Whether requests are accepted; set by the caller.
        stage: The last stage of the start that was seen.
        unseen: Warnings and errors of the start that were not shown.
    """

    def __init__(self) -> None:
        self.serving = False
        self.stage: str | None = None
        self.unseen = 0
        self._warned: set[str] = set()
        self._head = ""
        self._noise = False
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines to show of the bytes written since the last call."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        # A progress bar rewrites its line, which has no end yet.
        self._rest = self._rest[_last(self._rest) :]
        for part in [*whole, self._rest]:
            self.stage = stage(_text(part)) or self.stage
        return [line for part in whole for line in self._shown(_text(part))]

    def rest(self) -> list[str]:
        """Return the line to show, if any, of a last line without an end; call it after the last :meth:`feed`."""
        rest, self._rest = self._rest, b""
        return list(self._shown(_text(rest))) if rest else []

    def _shown(self, line: str) -> Iterator[str]:
        found = entry(line)
        same, self._head = found is not None and found.head == self._head, found.head if found else ""
        # A record's first line decides whether it is noise. Errors and lines of a traceback never are.
        noise = found is not None and found.level == "WARNING" and _NOISE.search(found.text) is not None
        self._noise = noise or (same and self._noise)
        if line.startswith(OURS):
            yield line
        elif self.serving:
            if not self._noise and not (_quiet(found) if found else _LEFTOVERS.match(line)):
                yield line
        elif found and not same and not _quiet(found):
            yield from self._warning(found)

    def _warning(self, found: Entry) -> Iterator[str]:
        """Yield a startup warning once; an error that ends the start is reported at its end."""
        if self._noise or found.text in self._warned:
            return
        self._warned.add(found.text)
        if found.level == "WARNING" and len(self._warned) <= MOST_WARNINGS:
            yield f"{OURS}vLLM warns: {found.text}"
        else:
            self.unseen += 1


def _quiet(found: Entry) -> bool:
    return found.level in _HIDDEN_LEVELS or found.text.startswith(SHUTDOWN)


def _text(part: bytes) -> str:
    return _ANSI.sub("", part[_last(part) :].rstrip(b"\r").decode(errors="replace"))


def _last(part: bytes) -> int:
    """Return where the last text of a rewritten line begins; vLLM ends the lines of one record with CR and LF."""
    return part.rstrip(b"\r").rfind(b"\r") + 1
