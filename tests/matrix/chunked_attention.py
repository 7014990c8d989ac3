"""Attention to a token's own chunk and those just before it, in float32: vLLM has a Triton kernel for it, of GPUs.

Everything around it is vLLM's: projections, rotation, the blocks and which of them a sequence has.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float,
    size: int,
    lookback: int,
) -> torch.Tensor:
    """What the last tokens of one sequence read, ``[tokens, heads, head size]``.

    Args:
        query: The same shape.
        keys: ``[length of the sequence, key heads, head size]``, as are ``values``.
        values: Of the same tokens.
        scale: Of the scores.
        softcap: Their bound, 0 for none.
        size: Tokens of a chunk.
        lookback: How many earlier chunks a token reads.
    """
    length, groups = len(keys), query.shape[1] // keys.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys.repeat_interleave(groups, dim=1).float()) * scale
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    at, of = torch.arange(length - len(query), length)[:, None], torch.arange(length)[None, :]
    seen = (of <= at) & (at // size - of // size <= lookback)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(groups, dim=1).float())


def install() -> None:
    """Let vLLM's attention layers on CPUs have chunks."""
    Attention.__init__ = _taking_lookback(Attention.__init__)
    CPUAttentionBackendImpl.do_kv_cache_update = _keeping_rows(CPUAttentionBackendImpl.do_kv_cache_update)
    CPUAttentionBackendImpl.forward = _reading_chunks(CPUAttentionBackendImpl.forward)


def _taking_lookback(upstream: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, *args: Any, chunk_lookback: int = -1, **more: Any) -> None:
        upstream(self, *args, **more)
        self.impl.lookback = chunk_lookback if self.impl.sliding_window > 0 else -1

    return init


def _keeping_rows(upstream: Callable[..., None]) -> Callable[..., None]:
    """Also keep keys and values by slot: the kernels' own layout of a block is for kernels to read."""

    def update(
        self: Any, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slots: Any
    ) -> None:
        upstream(self, layer, key, value, kv_cache, slots)
        if getattr(self, "lookback", -1) < 0:
            return
        if not hasattr(self, "rows"):
            self.rows = torch.zeros(2, kv_cache.shape[0] * kv_cache.shape[2], *key.shape[1:])
        written = slots >= 0
        self.rows[:, slots[written]] = torch.stack((key[: len(slots)], value[: len(slots)]))[:, written].float()

    return update


def _reading_chunks(upstream: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward(
        self: Any, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, output: Any, **more: Any
    ) -> torch.Tensor:
        if metadata is None or getattr(self, "lookback", -1) < 0:
            return upstream(self, layer, query, key, value, kv_cache, metadata, output, **more)
        block_size = kv_cache.shape[2]
        size = self.sliding_window // (self.lookback + 1)
        starts = metadata.query_start_loc.tolist()
        for number, (start, end) in enumerate(pairwise(starts)):
            places = torch.arange(int(metadata.seq_lens[number]))
            slots = metadata.block_table[number].long()[places // block_size] * block_size + places % block_size
            keys, values = self.rows[:, slots]
            read = attend(query[start:end], keys, values, self.scale, self.logits_soft_cap, size, self.lookback)
            output[start:end] = read.view_as(output[start:end])
        return output

    return forward
