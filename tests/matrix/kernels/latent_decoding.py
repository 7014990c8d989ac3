"""Decoding of multi-head latent attention in float32: vLLM's CPU kernel takes blocks of 16 tokens and no others.

Models with Mamba layers have larger blocks. The prefill is vLLM's, and so are the cache and what is written into it.
"""

from typing import Any

import torch
from vllm import _custom_ops
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend


def decode(
    out: torch.Tensor, query: Any, cache: torch.Tensor, scale: float, tables: Any, lengths: torch.Tensor
) -> None:
    """Write what the last token of each sequence reads to ``out``, ``[sequences, heads, latent]``.

    ``cache`` holds keys by block, ``[blocks, block size, latent + rotated]``, whose first part is the value too.
    """
    for number, length in enumerate(lengths.tolist()):
        keys = cache[tables[number].long()].flatten(0, 1)[:length]
        out[number] = (query[number] @ keys.T * scale).softmax(-1) @ keys[:, : out.shape[-1]]


def install() -> None:
    """Have latent attention in this process decode so."""
    _custom_ops.mla_decode_kvcache_cpu = decode
    CPUMLABackend.supports_block_size = classmethod(lambda _, size: size is None or size % 16 == 0)
    CPUMLABackend.get_supported_kernel_block_sizes = staticmethod(lambda *_: [MultipleOf(16)])
