"""Describes the root cause of a failed start in one line."""

import signal
import traceback
from re import compile as pattern

MOST = 400
_PACKAGES = ("vllm", "ropeswitch")
# vLLM's message when an engine process exits during startup, with the exit codes by process.
_ENDED = pattern(r"Engine core initialization failed.*?\{(?P<codes>.*)\}")


def root_cause(error: BaseException) -> str:
    """Return type and message of the first error in a ``raise from`` chain, and its innermost line in vLLM or ropeswitch.

    Only explicit causes count: an error raised while handling another carries more information than that one.
    """
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    message = " ".join(str(error).split())
    if len(message) > MOST:
        message = f"{message[:MOST]}…"
    name = type(error).__name__
    return f"{name}: {message or 'no message'}{_place(error)}"


def ended_process(error: BaseException) -> str | None:
    """Describe how an engine process that reported no error ended, from vLLM's error about it; None for other errors."""
    match = _ENDED.search(str(error))
    if match is None:
        return None
    code = match["codes"].rpartition(":")[2].strip()
    name = next((each.name for each in signal.Signals if code == str(-each)), None)
    killed = " (the system does this when memory runs out: free some, or lower --kv-cache-memory-bytes)"
    if name is None:
        return f"an engine process exited with code {code or 'unknown'} without reporting an error"
    return f"an engine process was killed by {name}{killed if name == 'SIGKILL' else ''}"


def _place(error: BaseException) -> str:
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        # By module name: a checkout's folder may not have the package's name.
        package, _, module = str(frame.f_globals.get("__name__", "")).partition(".")
        if package in _PACKAGES and module:
            return f" ({package}/{module.replace('.', '/')}.py:{line})"
    return ""
