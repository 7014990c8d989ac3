"""Reports why a child process failed to start, so that the command can end with that reason as its last line.

The engine runs in child processes. After a failed start vLLM prints the child's traceback and another one from
``multiprocessing``, and the parent knows only that a child died. So the command names a file in the environment, and a child
whose start fails writes the reason there. A refusal is an error about the user's input; any other error is a fault, of which
the root cause is reported. vLLM loads this module into stock engines too, so it imports only the standard library.
"""

import ctypes
import logging
import multiprocessing
import os
import re
import select
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

VARIABLE = "ROPESWITCH_REFUSAL_FILE"
EXIT_CODE = 2
# Ending of the file that has the root cause of the first fault.
FAULT = ".fault"
# Maximum characters of a root cause's message.
MOST = 400

# vLLM's functions that check the user's input: configs and the KV cache's size; the parsers' names and the address.
INPUT_CHECKS = frozenset({"create_engine_config", "_check_enough_kv_cache_memory", "_auto_fit_max_model_len"})
SERVER_CHECK = "setup_server"
# Fields of configs whose flag has another name.
FLAGS = {"cache_dtype": "kv_cache_dtype"}
# Loggers that log a failed start of an engine or worker process, and parts of their messages. After a worker's exception the
# engine fails with an error that does not mention it.
LOGGERS = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor")
_FAILURES = re.compile("failed to start|hit an exception")
_PR_SET_PDEATHSIG = 1
# Prefix of the names of vLLM's API server processes, where there are several.
_API_SERVER = "ApiServer"
# vLLM's message when a signal ended an engine process during startup, with the negative exit code.
_KILLED = re.compile(r"Engine core initialization failed.*\{.*: -(?P<signal>\d+)\}")


@contextmanager
def channel() -> Iterator[None]:
    """Provide the file in which child processes report why they failed to start, for as long as the server runs."""
    with TemporaryDirectory(prefix="ropeswitch-") as folder:
        os.environ[VARIABLE] = str(Path(folder, "refusal"))
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def reported(ending: str = "") -> str | None:
    """Return the reason that a process has reported for refusing to start, or with ``FAULT`` its fault; None without one."""
    file = Path(f"{os.environ[VARIABLE]}{ending}")
    return file.read_text(encoding="utf-8") if file.exists() else None


def report(text: str, ending: str = "") -> None:
    """Write the reason for refusing to start to the channel's file, or another text to the file with its ``ending``.

    Does nothing if that file exists already, or without a channel.
    """
    if path := os.environ.get(VARIABLE):
        draft = Path(f"{path}{ending}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        # A link makes the file appear complete, and never replaces an earlier one.
        with suppress(FileExistsError):
            os.link(draft, f"{path}{ending}")
        draft.unlink()


def reason_of(error: BaseException) -> str | None:
    """Return the reason of a refused start, or None for a fault.

    Refusals are our errors for bad input, and errors of vLLM's checks of the user's input, in vLLM's words.
    """
    from ropeswitch.factors.errors import InputError

    if isinstance(error, InputError):
        return str(error)
    functions = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    if SERVER_CHECK in functions:
        address = isinstance(error, OSError | OverflowError | UnicodeError)
        return f"--host, --port, --uds: {error}" if address else ", ".join(map(str, error.args))
    if not functions & INPUT_CHECKS or not isinstance(error, ValueError | TypeError | NotImplementedError):
        return None
    # A validation error of pydantic has one message per field, and its text has many lines.
    details = getattr(error, "errors", None)
    if not callable(details):
        return str(error)
    return "; ".join(
        f"--{FLAGS.get(each['loc'][0], str(each['loc'][0])).replace('_', '-')}: {each.get('input')!r}: {each['msg']}"
        if each["loc"]
        else each["msg"]
        for each in details()
    )


def root_cause(error: BaseException) -> str:
    """Return type and message of the first error in a ``raise from`` chain, as one line.

    Only explicit causes count: an error raised while handling another carries more information than that one.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    message = " ".join(str(error).split())
    if killed := _KILLED.search(message):
        name = next((each.name for each in signal.Signals if each == int(killed["signal"])), "a signal")
        memory = " (the system does this when memory runs out: free some, or lower --kv-cache-memory-bytes)"
        return f"an engine process was killed by {name}{memory if name == 'SIGKILL' else ''}"
    if len(message) > MOST:
        message = f"{message[:MOST]}…"
    return f"{type(error).__name__}: {message or 'no message'}"


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if it is a child of ``ropeswitch serve``.

    Otherwise an engine outlives a killed command. Its parent's main thread started it, as the kernel watches that thread.
    """
    if VARIABLE not in os.environ or multiprocessing.current_process().name == "MainProcess":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before. Then nobody reads standard output, a pipe to the command (outlet.py).
    output = select.poll()
    output.register(1, 0)
    if any(events & select.POLLERR for _, events in output.poll(0)):
        os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Prepare a process of ``ropeswitch serve``, which opens the channel; vLLM calls it at the start of every process.

    A process reports a failed start, ignores Ctrl-C and ends with its parent. One of several API servers gets our classes.
    """
    if VARIABLE not in os.environ:
        return
    end_with_parent()
    if multiprocessing.parent_process() is not None:
        # A terminal's Ctrl-C reaches every process. The server's finishes the requests in flight, and then stops these.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_report_failure)
    if multiprocessing.current_process().name.startswith(_API_SERVER):
        from ropeswitch.server.app.engine_client import use_our_classes

        use_our_classes()


def _report_failure(record: logging.LogRecord) -> bool:
    """Report the error of a record about a failed start; a filter that lets every record through."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and _FAILURES.search(str(record.msg)):
        if (reason := reason_of(error)) is not None:
            report(reason)
        else:
            report(root_cause(error), FAULT)
    return True
