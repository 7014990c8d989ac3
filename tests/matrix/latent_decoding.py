"""Decoding of multi-head latent attention in float32: vLLM's CPU kernel takes blocks of 16 tokens and no others.

Models with Mamba layers have larger blocks. The prefill is vLLM's, and so are the cache and what is written into it.
"""

import torch
from vllm import _custom_ops
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend


def decode(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    scale: float,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """What the last token of each sequence reads from its cache.

    Args:
        out: ``[sequences, heads, latent]``.
        query: ``[sequences, heads, latent + rotated]``.
        kv_cache: ``[blocks, block size, latent + rotated]``, keys whose first part is the value too.
        scale: Of the softmax.
        block_tables: The blocks of each sequence.
        seq_lens: Tokens of each sequence.
    """
    for number, length in enumerate(seq_lens.tolist()):
        keys = kv_cache[block_tables[number].long()].flatten(0, 1)[:length]
        out[number] = (query[number] @ keys.T * scale).softmax(-1) @ keys[:, : out.shape[-1]]


def install() -> None:
    """Have latent attention in this process decode so."""
    _custom_ops.mla_decode_kvcache_cpu = decode
    CPUMLABackend.supports_block_size = classmethod(lambda _, size: size is None or size % 16 == 0)
    CPUMLABackend.get_supported_kernel_block_sizes = staticmethod(lambda *_: [MultipleOf(16)])
