"""vLLM's ``vllm.general_plugins`` hook: reports failed starts, also those of plain ``vllm serve``."""

import multiprocessing
import os
import sys
from pathlib import Path

from ropeswitch.server.start import refusals

# Prefix of the names of vLLM's API server processes, where there are several.
_API_SERVER = "ApiServer"


def install() -> None:
    """Prepare this process; vLLM calls it at the start of every process.

    The processes of ``ropeswitch serve``, which opens the channel, report failed starts through it, and one of several API
    servers gets our classes. A command of vLLM prints our own errors as one line; other errors keep their tracebacks.
    """
    if refusals.VARIABLE in os.environ:
        refusals.install()
        if multiprocessing.current_process().name.startswith(_API_SERVER):
            from ropeswitch.server.app.engine_client import use_our_classes

            use_our_classes()
    elif multiprocessing.parent_process() is None and _is_command(sys.modules["__main__"]):
        traceback_of = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: object) -> None:
            from ropeswitch.factors.errors import InputError

            if isinstance(error, InputError):
                print(f"ropeswitch: error: {error}", file=sys.stderr, flush=True)
            else:
                traceback_of(kind, error, trace)  # type: ignore[arg-type]

        sys.excepthook = hook


def _is_command(main: object) -> bool:
    """Whether a ``__main__`` module is the ``vllm`` script or a module of vLLM, not a program that imports vLLM."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).startswith("vllm.")
    return Path(getattr(main, "__file__", None) or "").name == "vllm"
