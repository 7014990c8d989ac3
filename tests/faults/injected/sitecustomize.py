"""On ``PYTHONPATH``: a server whose request fails inside, where one of the request's ``stop`` strings says so.

A module is changed when it has been loaded, in whichever of the server's processes loads it.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
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


def failing(upstream: Callable[..., Any], fault: str, kind: type[Exception]) -> Callable[..., Any]:
    @functools.wraps(upstream)
    def call(*args: Any, **kwargs: Any) -> Any:
        if fault_of(*args, *kwargs.values()) == fault:
            raise kind(SECRET)
        return upstream(*args, **kwargs)

    return call


def break_handler(module: ModuleType) -> None:
    handler = module.OpenAIServingCompletion
    handler.create_completion = failing(handler.create_completion, "handler", RuntimeError)


def break_input(module: ModuleType) -> None:
    module.InputProcessor.process_inputs = failing(module.InputProcessor.process_inputs, "input", RuntimeError)


def break_engine(module: ModuleType) -> None:
    make = module.Request.from_engine_core_request
    module.Request.from_engine_core_request = staticmethod(failing(make, "engine", RuntimeError))


BROKEN = {
    "vllm.entrypoints.openai.completion.serving": break_handler,
    "vllm.v1.engine.input_processor": break_input,
    "vllm.v1.request": break_engine,
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules as Python does, and has them changed when they are loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        change = BROKEN.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if change is not None else None
        if spec is None or spec.loader is None or change is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
