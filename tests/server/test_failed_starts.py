"""How a failed start is reported: what counts as a refusal, the channel to the command, and the root cause in one line."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.server.start import refusals
from ropeswitch.server.start.refusals import MOST, root_cause

CORE, EXECUTOR = (logging.getLogger(f"vllm.v1.{name}") for name in ("engine.core", "executor.multiproc_executor"))
DIED = "Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore_DP0': {}}}"


def test_a_start_that_fails_reports_its_first_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker fails before its executor and the engine do."""
    for logger in (CORE, EXECUTOR):
        monkeypatch.setattr(logger, "filters", [])
    with refusals.channel():
        refusals.install()
        CORE.error("something else", exc_info=RuntimeError("no fault"))
        assert refusals.reported(refusals.FAULT) is None
        EXECUTOR.error("WorkerProc hit an exception.", exc_info=ValueError("No common block size"))
        CORE.error("EngineCore failed to start.", exc_info=RuntimeError("Worker failed with error"))
        assert refusals.reported() is None
        assert refusals.reported(refusals.FAULT) == "ValueError: No common block size"
        for reason in ("first", "second"):
            CORE.error("EngineCore failed to start.", exc_info=UnsupportedError(reason))
        assert refusals.reported() == "first"
    assert refusals.VARIABLE not in os.environ


@pytest.mark.parametrize("ours", [True, False])
def test_ctrl_c_is_the_server_s_and_not_its_processes(ours: bool) -> None:
    """A terminal's Ctrl-C goes to every process; an engine that took it would end its requests in flight."""
    # As from a terminal: a process that a script started in the background ignores it already.
    script = """if True:
        import multiprocessing, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from ropeswitch.server.start.refusals import install
        install()
        def ignored():
            install()
            raise SystemExit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
        child = multiprocessing.get_context('fork').Process(target=ignored)
        child.start()
        child.join()
        print(child.exitcode, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
    """
    env = os.environ | ({refusals.VARIABLE: "any"} if ours else {})
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{int(ours)} False\n"


COMMAND = """
import multiprocessing, os, signal, sys, time
import ropeswitch.server.cli
from ropeswitch.server.start.log.outlet import Outlet
from ropeswitch.server.start.refusals import channel

if __name__ == "__main__":
    with channel():
        Outlet(1, "").pump()
        multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)).start()
        time.sleep(float(sys.argv[1]))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seconds", [0, 3], ids=["at once", "later"])
def test_a_spawned_process_ends_with_a_killed_command(tmp_path: Path, seconds: int) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    # The pipe has its end when the last process that holds it is gone.
    done = subprocess.run([sys.executable, str(script), str(seconds)], stderr=subprocess.PIPE, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("No common\n  block size for 16", "ValueError: No common block size for 16"),
        ("", "ValueError: no message"),
        ("x" * 9999, f"ValueError: {'x' * MOST}…"),
        (
            DIED.format(-9),
            "an engine process was killed by SIGKILL (the system does this when memory runs out: free some, ",
        ),
        (DIED.format(-11), "an engine process was killed by SIGSEGV"),
        (DIED.format(3), "ValueError: Engine core initialization failed. "),
    ],
)
def test_a_failed_start_ends_with_its_explicit_cause_in_one_line(message: str, expected: str) -> None:
    error, cause = RuntimeError("the engine failed"), ValueError(message)
    error.__cause__, cause.__context__ = cause, KeyError("another")
    assert root_cause(error).startswith(expected) and "\n" not in root_cause(error)
