"""How a failed start is reported: what counts as a refusal, and the channel."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.guard.fingerprints import RegistryError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.server.start import refusals, vllm_command


def create_engine_config(error: Exception) -> None:
    """Stands in for vLLM's function of this name."""
    raise error


def raised(error: Exception) -> Exception:
    try:
        create_engine_config(error)
    except Exception as caught:
        return caught
    raise AssertionError


def test_refusals_and_faults() -> None:
    assert refusals.reason_of(UnsupportedError("why")) == "why"
    assert refusals.reason_of(FactorError("why")) == "why"
    assert refusals.reason_of(RegistryError("why")) == "why"
    assert refusals.reason_of(raised(ValueError("why"))) == "why"
    for fault in (ValueError("x"), RuntimeError("x"), KeyError("x"), raised(RuntimeError("x"))):
        assert refusals.reason_of(fault) is None


def test_a_start_that_fails_reports_its_first_reason() -> None:
    logger = logging.getLogger("vllm.v1.engine.core")
    before = list(logger.filters)
    vllm_command.install()
    assert logger.filters == before, "inert without our command"
    try:
        with refusals.channel():
            vllm_command.install()
            vllm_command.install()
            assert len(logger.filters) == len(before) + 1
            logger.error("something else", exc_info=RuntimeError("no fault"))
            for fault in ("first fault", "second fault"):
                logger.error("EngineCore failed to start.", exc_info=RuntimeError(fault))
            assert refusals.reported() is None
            assert refusals.reported_fault() == "RuntimeError: first fault"
            for reason in ("first", "second"):
                logger.error("EngineCore failed to start.", exc_info=UnsupportedError(reason))
            assert refusals.reported() == "first"
        assert refusals.VARIABLE not in os.environ
    finally:
        logger.filters = before


def test_a_worker_that_fails_reports_before_its_executor_does() -> None:
    logger = logging.getLogger("vllm.v1.executor.multiproc_executor")
    before = list(logger.filters)
    try:
        with refusals.channel():
            refusals.install()
            logger.error("WorkerProc hit an exception.", exc_info=ValueError("No common block size"))
            logger.error("EngineCore failed to start.", exc_info=RuntimeError("Worker failed with error"))
            assert refusals.reported_fault() == "ValueError: No common block size"
    finally:
        logger.filters = before


@pytest.mark.parametrize("ours", [True, False])
def test_ctrl_c_is_the_server_s_and_not_its_processes(ours: bool) -> None:
    """A terminal's Ctrl-C goes to every process; an engine that took it would end its requests in flight."""
    # As from a terminal: a process that a script started in the background ignores it already.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from ropeswitch.server.start.vllm_command import install; install()\n"
    script += "def ignored(): install(); raise SystemExit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
    script += "import multiprocessing\n"
    script += "child = multiprocessing.get_context('fork').Process(target=ignored); child.start(); child.join()\n"
    script += "print(child.exitcode, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    variables = {refusals.VARIABLE: "any"} if ours else {}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
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
