"""On ``PYTHONPATH``: a server whose request fails inside, where one of the request's ``stop`` strings says so.

A module is changed when it has been loaded, in whichever of the server's processes loads it.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from types import MethodType, ModuleType
from typing import Any

SECRET = "a secret of the server"
PREFIX = "fault: "


def fault_of(*values: Any) -> str | None:
    """Which fault a request asks for, by its own fields or by its sampling parameters'."""
    for value in values:
        for params in (value, getattr(value, "sampling_params", None)):
            for word in getattr(params, "stop", None) or []:
                if word.startswith(PREFIX):
                    return word.removeprefix(PREFIX)
    return None


def break_method(owner: Any, name: str, fault: str) -> None:
    upstream = getattr(owner, name)

    @functools.wraps(upstream)
    def call(*args: Any, **kwargs: Any) -> Any:
        if fault_of(*args, *kwargs.values()) == fault:
            raise RuntimeError(SECRET)
        return upstream(*args, **kwargs)

    # The server compares the function below all wrappers with its fingerprint.
    call.__wrapped__ = getattr(upstream, "__func__", upstream)  # type: ignore[attr-defined]
    # A class method is bound already.
    setattr(owner, name, staticmethod(call) if isinstance(upstream, MethodType) else call)


# By module: the class, its method, and the fault that makes it fail.
BROKEN = {
    "vllm.entrypoints.openai.completion.serving": ("OpenAIServingCompletion", "create_completion", "handler"),
    "vllm.v1.engine.input_processor": ("InputProcessor", "process_inputs", "input"),
    "vllm.v1.request": ("Request", "from_engine_core_request", "engine"),
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules as Python does, and has them changed when they are loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in BROKEN:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        load, (owner, method, fault) = spec.loader.exec_module, BROKEN[name]

        def load_and_break(module: ModuleType) -> None:
            load(module)
            break_method(getattr(module, owner), method, fault)

        spec.loader.exec_module = load_and_break
        return spec


sys.meta_path.insert(0, Finder())
