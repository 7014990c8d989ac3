"""Longer tables of cos and sin for stock vLLM with static YaRN.

The reference scores whole sequences under the factors of every set, also those that end within them; vLLM's tables end where
the set does, and some of its modules stop at a position beyond.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import DeepseekScalingRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding


@contextmanager
def tables_of(positions: int) -> Iterator[None]:
    """Make modules that are built meanwhile cover at least ``positions``, by upstream's own formula."""
    classes = (YaRNScalingRotaryEmbedding, DeepseekScalingRotaryEmbedding)

    def longer(upstream: Any) -> Any:
        def compute(self: Any) -> torch.Tensor:
            window, frequencies = self.max_position_embeddings, self._compute_inv_freq(self.scaling_factor)
            self._compute_inv_freq, self.max_position_embeddings = lambda _: frequencies, max(window, positions)
            try:
                table: torch.Tensor = upstream(self)
                return table
            finally:
                del self._compute_inv_freq
                self.max_position_embeddings = window

        return compute

    first, second = (patch.object(cls, "_compute_cos_sin_cache", longer(cls._compute_cos_sin_cache)) for cls in classes)
    with first, second:
        yield
