"""Models made by transformers alone, in a process where vLLM may have served others of their classes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

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
