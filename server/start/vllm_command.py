"""Prints a refused start of plain ``vllm serve`` as one line, in place of the tracebacks of its processes."""

import atexit
import multiprocessing
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

from ropeswitch.model_patches.switch.config import variables
from ropeswitch.server.start import refusals

# Prefix of the names of vLLM's API server processes, where there are several.
_API_SERVER = "ApiServer"


def install() -> None:
    """vLLM's ``vllm.general_plugins`` hook, run at the start of every process: reports refusals, if there is a channel.

    One of several API servers also gets our classes. The ``ropeswitch`` command opens the channel;
    without one, this only prepares a command of vLLM.
    """
    if refusals.VARIABLE in os.environ:
        refusals.install()
        if multiprocessing.current_process().name.startswith(_API_SERVER):
            from ropeswitch.server.app.engine_client import use_our_classes

            use_our_classes()
    else:
        attach(os.environ)


def attach(environment: Mapping[str, str]) -> None:
    """Print our own errors as one line if this process runs a command of vLLM; other errors keep their tracebacks.

    If a variable turns the switch on, child processes report their refusals too (:mod:`ropeswitch.server.start.refusals`).
    """
    if multiprocessing.parent_process() is not None or not _is_command(sys.modules["__main__"]):
        return
    if variables.given(environment):
        folder = mkdtemp(prefix="ropeswitch-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[refusals.VARIABLE] = str(Path(folder, "refusal"))
    traceback_of = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: object) -> None:
        from ropeswitch.factors.errors import InputError

        reason = refusals.reported() or (str(error) if isinstance(error, InputError) else None)
        if reason is None:
            traceback_of(kind, error, trace)  # type: ignore[arg-type]
        else:
            print(f"ropeswitch: error: {reason}", file=sys.stderr, flush=True)

    sys.excepthook = hook


def _is_command(main: object) -> bool:
    """Whether a ``__main__`` module is the ``vllm`` script or a module of vLLM, not a program that imports vLLM."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).startswith("vllm.")
    return Path(getattr(main, "__file__", None) or "").name == "vllm"
