"""What computes in torch for want of a CPU kernel: exact layers around it would count for nothing if it were wrong."""

import torch
import torch.nn.functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule
from vllm import _custom_ops

from tests.matrix.kernels import (
    chunked_attention,
    delta_rule,
    expert_routing,
    kimi_delta_rule,
    latent_decoding,
    lightning,
)


def test_a_token_reads_its_own_chunk_and_those_just_before_it() -> None:
    torch.manual_seed(0)
    length, last, size, lookback = 23, 9, 4, 1
    query, keys, values = torch.randn(last, 1, 8), torch.randn(length, 1, 8), torch.randn(length, 1, 8)
    wanted = []
    for number, at in enumerate(range(length - last, length)):
        seen = slice((at // size - lookback) * size, at + 1)
        weights = (keys[seen, 0] @ query[number, 0] * 0.3).softmax(0)
        wanted.append(weights @ values[seen, 0])
    found = chunked_attention.attend(query, keys, values, 0.3, size, lookback)
    torch.testing.assert_close(found[:, 0], torch.stack(wanted))


def test_the_delta_rule_continues_from_a_state() -> None:
    """In two parts, as chunks of a prompt are; the reference computes the whole at once."""
    torch.manual_seed(0)
    tokens, heads, keys, values = 70, 3, 8, 16
    query, key = torch.randn(2, tokens, heads, keys)
    value, decay = torch.randn(tokens, heads, values), -F.softplus(torch.randn(tokens, heads))
    beta, state = torch.rand(tokens, heads), torch.randn(heads, keys, values)
    given = [each.unsqueeze(0) for each in (query, key, value, decay, beta)]
    options = {"initial_state": state.unsqueeze(0), "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    wanted, last = torch_chunk_gated_delta_rule(*given, **options)
    found = [
        delta_rule.attend(query[part], key[part], value[part], decay[part].unsqueeze(-1), beta[part], state)
        for part in (slice(0, 33), slice(33, tokens))
    ]
    torch.testing.assert_close(torch.cat(found), wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, last[0], atol=1e-5, rtol=1e-5)


def test_kimi_decays_each_key_within_its_bound() -> None:
    speed, bias, raw = torch.tensor([0.5, 1.0]), torch.randn(6), torch.randn(5, 6)
    plain, bounded = (kimi_delta_rule.gate(raw, speed.log(), 3, bias, lower_bound=bound) for bound in (None, -5.0))
    shifted = (raw + bias).view(5, 2, 3)
    torch.testing.assert_close(plain[:, 1], -F.softplus(shifted[:, 1]))
    torch.testing.assert_close(bounded[:, 0], -5 * (0.5 * shifted[:, 0]).sigmoid())


def test_a_bias_chooses_experts_but_does_not_weigh_them() -> None:
    logits, bias = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([0.0, 0.0, 0.0, 9.0])
    weights, indices = torch.empty(1, 2), torch.empty(1, 2, dtype=torch.int32)
    expert_routing.topk_softmax(weights, indices, None, logits, False, bias, is_padding=None)
    assert sorted(indices[0].tolist()) == [0, 3]
    torch.testing.assert_close(weights[0], logits.softmax(-1)[0, indices[0].long()])


def test_latent_decoding_is_that_of_the_kernel_for_blocks_of_16() -> None:
    torch.manual_seed(0)
    cache, query = torch.randn(12, 16, 576), torch.randn(3, 4, 576)
    tables, lengths = torch.randperm(12).view(3, 4).int(), torch.tensor([64, 17, 1], dtype=torch.int32)
    ours, kernels = torch.empty(2, 3, 4, 512)
    latent_decoding.decode(ours, query, cache, 0.05, tables, lengths)
    _custom_ops.mla_decode_kvcache_cpu(kernels, query, cache, 0.05, tables, lengths)
    torch.testing.assert_close(ours, kernels, atol=1e-5, rtol=1e-5)


def test_lightning_attention_fades_across_chunks_and_decodes() -> None:
    torch.manual_seed(0)
    tokens, heads, width = 20, 3, 8
    query, key, value = torch.randn(3, 1, heads, tokens, width)
    slope = torch.rand(heads, 1, 1)
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    wanted = (query @ key.transpose(-1, -2) * (-slope * distance).exp().tril()) @ value
    cache, found = torch.zeros(2, heads, width, width), []
    for part in (slice(0, 7), slice(7, 15)):
        given = [each[:, :, part] for each in (query, key, value)]
        read, states = lightning.prefill(*given, slope, block_size=256, kv_history=cache[1:])
        cache[1] = states[0, :, -1]
        found.append(read)
    for token in range(15, tokens):
        given = [each[:, :, token : token + 1] for each in (query, key, value)]
        found.append(lightning.decode(*given, cache, slope, torch.tensor([1]), 32).view(1, heads, 1, width))
    torch.testing.assert_close(torch.cat(found, dim=2), wanted, atol=1e-5, rtol=1e-5)
