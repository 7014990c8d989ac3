"""Lightning attention in torch is the sum that it stands for, in one prefill, in two, and token by token."""

import torch

from tests.matrix.lightning import decode, prefill


def test_it_is_attention_that_fades() -> None:
    torch.manual_seed(0)
    tokens, heads, width = 20, 3, 8
    query, key, value = torch.randn(3, 1, heads, tokens, width)
    slope = torch.rand(heads, 1, 1)
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    fading = (-slope * distance).exp().tril()
    wanted = (query @ key.transpose(-1, -2) * fading) @ value
    cache, found = torch.zeros(2, heads, width, width), []
    for part in (slice(0, 7), slice(7, 15)):
        given = [each[:, :, part] for each in (query, key, value)]
        read, states = prefill(*given, slope, block_size=256, kv_history=cache[1:])
        cache[1] = states[0, :, -1]
        found.append(read)
    for token in range(15, tokens):
        given = [each[:, :, token : token + 1] for each in (query, key, value)]
        found.append(decode(*given, cache, slope, torch.tensor([1]), 32).view(1, heads, 1, width))
    torch.testing.assert_close(torch.cat(found, dim=2), wanted, atol=1e-5, rtol=1e-5)
