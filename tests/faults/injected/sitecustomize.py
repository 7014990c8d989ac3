"""Executed in a forked server: its request fails inside, where one of the ``stop`` strings says so."""

import functools
import importlib
from types import MethodType
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


def _install() -> None:
    """Change what has been loaded, in the process that the server's others are forked from."""
    for name, (owner, method, fault) in BROKEN.items():
        break_method(getattr(importlib.import_module(name), owner), method, fault)


if __name__ == "sitecustomize":
    _install()
