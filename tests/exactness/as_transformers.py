"""Models made by transformers alone, in a process where vLLM may have served others of their classes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from transformers import PreTrainedConfig, PreTrainedModel


@contextmanager
def uncompiled(config: PreTrainedConfig) -> Iterator[None]:
    """Make a model in this context: vLLM's Transformers backend decorates the classes that it serves, to compile theirs."""
    if "vllm.model_executor.models.transformers.base" not in sys.modules:
        yield
        return
    from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config

    engine = VllmConfig(compilation_config=CompilationConfig(mode=CompilationMode.NONE))
    object.__setattr__(engine, "model_config", SimpleNamespace(hf_config=config))
    with set_current_vllm_config(engine):
        yield


def never_compiled(model: PreTrainedModel) -> PreTrainedModel:
    """The model, which stays as it is when vLLM decorates its class later."""
    model.base_model.do_not_compile = True
    return model


@contextmanager
def undecorated_afterwards() -> Iterator[None]:
    """Leave classes of transformers as they were before the engines of this context, for the tests that follow."""
    from vllm.model_executor.models.transformers.base import Base

    before: dict[type, tuple[tuple[type, ...], dict[str, Any]]] = {}
    upstream = Base._decorate_cls_for_torch_compile

    def decorate(self: Base, cls: type, *args: Any, **kwargs: Any) -> None:
        before.setdefault(cls, (cls.__bases__, dict(vars(cls))))
        upstream(self, cls, *args, **kwargs)

    with patch.object(Base, "_decorate_cls_for_torch_compile", decorate):
        yield
    for cls, (bases, names) in before.items():
        for name in set(vars(cls)) - set(names):
            delattr(cls, name)
        for name, value in names.items():
            if vars(cls)[name] is not value and name not in ("__dict__", "__weakref__"):
                setattr(cls, name, value)
        cls.__bases__ = bases
