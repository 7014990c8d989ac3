"""Reports a child process's refusal to start to the user as one line.

The engine runs in child processes. After a failed start vLLM prints the child's traceback and another one from
``multiprocessing``, and the parent knows only that a child died. So the command names a file in the environment: a child
whose start is refused writes the reason there and exits without a traceback, and the parent prints it. Faults are not
refusals: vLLM logs their tracebacks as usual, and the child reports their root cause, which the parent prints last.
"""

import logging
import multiprocessing
import os
import re
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

VARIABLE = "ROPESWITCH_REFUSAL_FILE"
EXIT_CODE = 2
_FAULT = ".fault"

# vLLM's functions that reject the user's input with an error of the types below.
_UPSTREAM_CHECKS = {
    "create_engine_config",
    "check_enough_kv_cache_memory",
    "_check_enough_kv_cache_memory",
    "_auto_fit_max_model_len",
    "determine_available_memory",
}
# The checks that a worker runs for its executor, after it has started.
_WORKER_CHECKS = {"determine_available_memory"}
_UPSTREAM_ERRORS = (ValueError, TypeError, NotImplementedError)

# Loggers that log a failed start of an engine process.
_LOGGERS = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "vllm.v1.utils")

_KV_CACHE = re.compile(
    r"max seq len \((?P<wanted>\d+)\).*?(?P<needed>[\d.]+) GiB KV cache is needed.*?memory \((?P<free>[\d.]+) GiB\)"
    r"(?:.*?estimated maximum model length is (?P<largest>\d+))?",
    re.DOTALL,
)
_HEADS = re.compile(r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<ranks>\d+)\)")
# Prefix of a message of vLLM's own validators.
_PREFIX = "Value error, "


@contextmanager
def channel() -> Iterator[None]:
    """Provide the file in which child processes report why they refuse to start, for as long as the server runs."""
    with TemporaryDirectory(prefix="ropeswitch-") as folder:
        path = Path(folder, "refusal")
        os.environ[VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def reported() -> str | None:
    """Return the reason that a process has reported for refusing to start, or None."""
    return _read("")


def report(reason: str) -> None:
    """Report the reason for refusing to start, unless one was reported before; do nothing without a channel."""
    _write("", reason)


def reported_fault() -> str | None:
    """Return the root cause of the first fault that a process has reported for its failed start, or None."""
    return _read(_FAULT)


def report_fault(error: BaseException) -> None:
    """Report the root cause of a failed start, unless one was reported before; do nothing without a channel."""
    # Imported where it is needed: vLLM loads this module into stock engines too.
    from ropeswitch.server.start.root_cause import root_cause

    _write(_FAULT, root_cause(error))


def failed_start(error: BaseException) -> str:
    """Return the last line of a start that failed without a refusal: the cause of the failure.

    Args:
        error: The error that vLLM's launcher raised in the command's process.
    """
    from ropeswitch.server.start.root_cause import ended_process, root_cause

    cause = reported_fault() or ended_process(error)
    return f"the engine did not start: {cause}" if cause else f"the server did not start: {root_cause(error)}"


def _read(ending: str) -> str | None:
    path = os.environ.get(VARIABLE)
    file = Path(f"{path}{ending}")
    return file.read_text(encoding="utf-8") if path and file.exists() else None


def _write(ending: str, text: str) -> None:
    if path := os.environ.get(VARIABLE):
        draft = Path(f"{path}{ending}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        # A link makes the file appear complete, and never replaces the first report.
        with suppress(FileExistsError):
            os.link(draft, f"{path}{ending}")
        draft.unlink()


def reason_of(error: BaseException) -> str | None:
    """Return the reason of a refused start, or None if the error is a fault.

    Refusals are our errors for bad input, and errors of vLLM's checks of the user's input.
    """
    # Imported here: vLLM loads this module into stock engines too, which need none of these.
    from ropeswitch.factors.errors import UsageError
    from ropeswitch.factors.factor_set import FactorError
    from ropeswitch.model_patches.guard.fingerprints import RegistryError
    from ropeswitch.model_patches.switch.config.settings import UnsupportedError

    if isinstance(error, FactorError | UnsupportedError | RegistryError | UsageError):
        return str(error)
    if "setup_server" in _raised_in(error):
        # vLLM checks the parsers' names and binds the address there, before the engine starts.
        return f"--host, --port, --uds: {error}" if isinstance(error, OSError) else ", ".join(map(str, error.args))
    if not isinstance(error, _UPSTREAM_ERRORS) or not _raised_in(error) & _UPSTREAM_CHECKS:
        return None
    if match := _KV_CACHE.search(str(error)):
        return _kv_cache_reason(match)
    if match := _HEADS.search(str(error)):
        return f"--tensor-parallel-size: {match['ranks']} must divide the model's {match['heads']} attention heads"
    # A validation error of pydantic has one message per field, and its text has many lines.
    details = getattr(error, "errors", None)
    return "; ".join(map(_detail_text, details())) if callable(details) else str(error)


def _detail_text(detail: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors about vLLM's config as a message about the flag of its field.

    Args:
        detail: An element of ``ValidationError.errors()``.
    """
    from ropeswitch.factors.quoted import quoted

    text = str(detail["msg"])
    if text.startswith(_PREFIX) or not detail.get("loc"):
        return text.removeprefix(_PREFIX)
    flag = str(detail["loc"][0]).replace("_", "-")
    return f"--{flag}: {quoted(detail.get('input'))}: {text}"


def died(error: BaseException) -> bool:
    """Whether an error only reports that another process of the server has died."""
    return isinstance(error, RuntimeError) and "wait_for_completion_or_failure" in _raised_in(error)


def install() -> None:
    """Have this engine or worker process report a refusal through the channel, and ignore Ctrl-C."""
    if multiprocessing.parent_process() is not None:
        # A terminal's Ctrl-C reaches every process. The server's finishes the requests in flight, and then stops these.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, _LeaveQuietly) for each in logger.filters):
            logger.addFilter(_LeaveQuietly())


class _LeaveQuietly(logging.Filter):
    """Exits a process whose start is refused when it logs the record that would print the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        message = str(record.msg)
        if "failed to start" in message:
            if (reason := reason_of(error)) is not None:
                report(reason)
            else:
                report_fault(error)
        if "hit an exception" in message and _raised_in(error) & _WORKER_CHECKS and (reason := reason_of(error)):
            # The worker returns the error to its executor, and the engine's start fails there.
            report(reason)
            return False
        if "hit an exception" in message:
            # During startup the engine then fails with an error that does not mention this one.
            report_fault(error)
        # Another process reported the reason, and this one failed only because of that.
        if reported() is not None:
            raise SystemExit(EXIT_CODE)
        return True


def _raised_in(error: BaseException) -> set[str]:
    """Return the names of the functions in an error's traceback."""
    return {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}


def _kv_cache_reason(match: re.Match[str]) -> str:
    needed, free, largest = match["needed"], match["free"], match["largest"]
    sizes = f" (it needs {needed} GiB, {free} GiB are available)" if needed != free else ""
    advice = (
        f"the largest length that fits is {largest}, which --max-model-len auto selects"
        if largest
        else "not even one block of tokens fits"
    )
    return f"max_model_len: one sequence of {match['wanted']} tokens does not fit the KV cache{sizes}; {advice}"
