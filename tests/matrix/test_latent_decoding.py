"""Decoding of latent attention in torch is vLLM's kernel, for the blocks that that takes."""

import torch
from vllm import _custom_ops

from tests.matrix.latent_decoding import decode


def test_it_is_the_kernel() -> None:
    torch.manual_seed(0)
    cache, query = torch.randn(12, 16, 576), torch.randn(3, 4, 576)
    tables = torch.randperm(12).view(3, 4).int()
    lengths = torch.tensor([64, 17, 1], dtype=torch.int32)
    ours, kernels = torch.empty(3, 4, 512), torch.empty(3, 4, 512)
    decode(ours, query, cache, 0.05, tables, lengths)
    _custom_ops.mla_decode_kvcache_cpu(kernels, query, cache, 0.05, tables, lengths)
    torch.testing.assert_close(ours, kernels, atol=1e-5, rtol=1e-5)
