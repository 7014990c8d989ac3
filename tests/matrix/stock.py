"""What stock vLLM needs to be a reference: static YaRN, other tables of cos and sin, and rotation in torch.

The reference scores whole sequences under the factors of every set, also those that end within them; vLLM's tables end where
the set does, and some of its modules stop at a position beyond. Some models write their layers' rotary parameters
themselves, so no config gives them YaRN: their tables are filled here.

Modules of M-RoPE have a table of four times the length unless the model says otherwise, as Qwen3-VL does, and compute YaRN
as if the window were four times as long too. Transformers and the ladder compute it on the window, so the reference does.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import DeepseekScalingRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding
from vllm.transformers_utils.config import get_hf_text_config

from tests.matrix.references import yarn
from tests.matrix.tiny import WINDOW

TABLE = "_compute_cos_sin_cache"


def static_yarn(trained: Mapping[str, Any], factor: float, positions: int) -> Callable[[Any], Any]:
    """``hf_overrides`` that give every length YaRN of ``factor``; 1 stands for the config's own rotary parameters."""

    def override(config: Any) -> Any:
        # Wherever the decoder's config is in the whole one.
        text = get_hf_text_config(config)
        theta = getattr(text, "rope_theta", 10000.0)
        rope = dict(getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": theta})
        if factor != 1:
            yarn = {"original_max_position_embeddings": WINDOW, **trained, "rope_type": "yarn", "factor": factor}
            if "full_attention" in rope:
                rope["full_attention"] = rope["full_attention"] | yarn
            else:
                rope |= yarn
        fields = {"rope_parameters": rope, "max_position_embeddings": positions}
        text.update(fields | ({"seq_length": positions} if hasattr(text, "seq_length") else {}))
        return config

    return override


@contextmanager
def tables_of(positions: int) -> Iterator[None]:
    """Make modules that are built meanwhile cover at least ``positions``, by upstream's own formula on the window."""

    def longer(upstream: Any) -> Any:
        def compute(self: Any) -> torch.Tensor:
            window, frequencies = self.max_position_embeddings, self._compute_inv_freq(self.scaling_factor)
            self._compute_inv_freq, self.max_position_embeddings = lambda _: frequencies, max(window, positions)
            try:
                return upstream(self)
            finally:
                del self._compute_inv_freq
                self.max_position_embeddings = window

        return compute

    def on_the_window(upstream: Any) -> Any:
        return lambda self, *args, **kwargs: upstream(self, *args, **kwargs | {"positions_factor": 1})

    with ExitStack() as stack:
        _wrap(stack, MRotaryEmbedding, "__init__", on_the_window)
        for each in (YaRNScalingRotaryEmbedding, DeepseekScalingRotaryEmbedding):
            _wrap(stack, each, TABLE, longer)
        yield


@contextmanager
def rotation_in_torch() -> Iterator[None]:
    """Have rotary modules that are built meanwhile run upstream's own torch code.

    vLLM's CPU kernel takes heads for adjacent. Where they are parts of wider ones, as in latent attention, it rotates other
    values.
    """
    with ExitStack() as stack:
        for each in _family(RotaryEmbeddingBase):
            if "forward_cpu" in vars(each):
                stack.enter_context(patch.object(each, "forward_cpu", each.forward_native))
        yield


@contextmanager
def forced(base: float, factor: float, trained: Mapping[str, Any], positions: int) -> Iterator[None]:
    """Give modules of ``base`` that are built meanwhile ``positions`` rows of YaRN of ``factor``; 1 is no scaling.

    Modules of another base, such as those of local layers, stay as they are.
    """

    def forcing(upstream: Any) -> Any:
        def compute(self: Any) -> torch.Tensor:
            if self.base != base:
                return upstream(self)
            pairs = self.rotary_dim // 2
            frequencies, scale = base ** -(torch.arange(pairs, dtype=torch.float64) / pairs), 1.0
            if factor != 1:
                frequencies, scale = yarn(base, pairs, factor, trained)
            angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies.double())
            return torch.cat((angles.cos(), angles.sin()), dim=-1).float() * scale

        return compute

    with ExitStack() as stack:
        # vLLM keeps modules by their parameters, which are alike for every set.
        stack.enter_context(patch.object(rotary_embedding, "_ROPE_DICT", {}))
        for each in _family(RotaryEmbeddingBase):
            if TABLE in vars(each):
                _wrap(stack, each, TABLE, forcing)
        yield


def _wrap(stack: ExitStack, cls: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    stack.enter_context(patch.object(cls, name, wrapper(getattr(cls, name))))


def _family(cls: type) -> list[Any]:
    return [cls, *(each for below in cls.__subclasses__() for each in _family(below))]
