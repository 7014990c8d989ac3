"""Attention to a token's own chunk and those just before it, in torch: vLLM has a Triton kernel for it, for GPUs.

Everything around it is vLLM's: projections, rotation, the blocks and which of them a sequence has.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl


def attend(query: Any, keys: Any, values: Any, scale: float, size: int, lookback: int) -> torch.Tensor:
    """What the last tokens of one sequence read, ``[tokens, heads, head size]``.

    A token reads its own chunk of ``size`` tokens and ``lookback`` earlier ones.
    """
    length = len(keys)
    at, of = torch.arange(length - len(query), length)[:, None], torch.arange(length)
    seen = (of <= at) & (at // size - of // size <= lookback)
    heads = (each.float().transpose(0, 1).unsqueeze(0) for each in (query, keys, values))
    return F.scaled_dot_product_attention(*heads, attn_mask=seen, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def install() -> None:
    """Let vLLM's attention layers on CPUs have chunks."""
    init, impl = Attention.__init__, CPUAttentionBackendImpl
    update, forward = impl.do_kv_cache_update, impl.forward

    def with_lookback(self: Any, *args: Any, chunk_lookback: int = -1, **more: Any) -> None:
        init(self, *args, **more)
        self.impl.lookback = chunk_lookback if self.impl.sliding_window > 0 else -1
        assert self.impl.lookback < 0 or not self.impl.logits_soft_cap

    def keep_rows(self: Any, layer: Any, key: torch.Tensor, value: Any, kv_cache: torch.Tensor, slots: Any) -> None:
        """Also keep keys and values by slot: the kernels' own layout of a block is for kernels to read."""
        update(self, layer, key, value, kv_cache, slots)
        if getattr(self, "lookback", -1) < 0:
            return
        if not hasattr(self, "rows"):
            self.rows = torch.zeros(2, kv_cache.shape[0] * kv_cache.shape[2], *key.shape[1:])
        written = slots >= 0
        self.rows[:, slots[written]] = torch.stack((key[: len(slots)], value[: len(slots)]))[:, written].float()

    def read_chunks(self: Any, layer: Any, query: Any, key: Any, value: Any, cache: Any, metadata: Any, output: Any,
                    **more: Any) -> torch.Tensor:  # fmt: skip
        if metadata is None or getattr(self, "lookback", -1) < 0:
            return forward(self, layer, query, key, value, cache, metadata, output, **more)
        block_size, size = cache.shape[2], self.sliding_window // (self.lookback + 1)
        for number, (start, end) in enumerate(pairwise(metadata.query_start_loc.tolist())):
            places = torch.arange(int(metadata.seq_lens[number]))
            slots = metadata.block_table[number].long()[places // block_size] * block_size + places % block_size
            read = attend(query[start:end], *self.rows[:, slots], self.scale, size, self.lookback)
            output[start:end] = read.reshape(output[start:end].shape)
        return output

    Attention.__init__, impl.do_kv_cache_update, impl.forward = with_lookback, keep_rows, read_chunks
