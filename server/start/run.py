"""Runs vLLM's launcher, and reports the cause if the server fails."""

import argparse
import atexit
import multiprocessing
import signal
import traceback
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start import refusals
from ropeswitch.server.start.log.console import Console
from ropeswitch.server.start.log.outlet import discard

# Seconds for vLLM to notice that its engine exited.
NOTICED = 10


def run(vllm_adapter: Any, args: argparse.Namespace, console: Console) -> int:
    """Serve until stopped, and return the exit code: 0, or 1 for a fault that has been printed.

    ``vllm_adapter`` is the module: its caller has imported vLLM.

    Raises:
        KeyboardInterrupt: when a signal ends the start.
        UsageError: for a refused start.
    """
    from ropeswitch.server.app.life_cycle import LIFE

    interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        again, interrupted = interrupted, True
        # No request is in flight yet, and an engine that is asked to stop would finish its start first, so kill it. vLLM
        # notices that it exited, unless it waits for the engine's first message; an exception here would make vLLM wait.
        engines = multiprocessing.active_children()
        for process in engines:
            process.kill()
        if again or not engines:
            raise KeyboardInterrupt
        signal.alarm(NOTICED)

    # Until the server installs its own handlers.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, interrupt)
    # Triton's nanobind lists hundreds of objects at exit.
    atexit.register(discard, 2)
    try:
        vllm_adapter.serve(args)
        if not LIFE.died:
            return 0
        failure = "the engine died"
    except BaseException as error:
        signal.alarm(0)
        if interrupted or isinstance(error, KeyboardInterrupt):
            # The child processes may have exited first, which vLLM reports as a different error.
            raise KeyboardInterrupt from error
        # A child process has reported its refusal; a refusal of this process is the error itself.
        if (reason := refusals.reported() or refusals.reason_of(error)) is not None:
            raise UsageError(reason) from error
        if isinstance(error, SystemExit) and not error.code:
            # Several API servers end this way after a signal.
            return 0
        if not isinstance(error, Exception):
            raise
        cause = refusals.reported(refusals.FAULT)
        if cause is None:  # otherwise a child process has printed its traceback
            traceback.print_exception(error)
        failure = (
            f"the server {'failed' if console.serving else 'did not start'}: {cause or refusals.root_cause(error)}"
        )
    console.catch_up()
    if not console.serving:
        console.release()
    console.say(f"error: {failure}; see the log above")
    return 1
