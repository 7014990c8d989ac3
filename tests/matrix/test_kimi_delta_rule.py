"""Kimi's delta rule in torch is the recurrence of its paper, and its gate that of vLLM's kernel."""

import torch
import torch.nn.functional as F

from tests.matrix.delta_rule import delta_rule
from tests.matrix.kimi_delta_rule import gate


def test_a_decay_of_each_key() -> None:
    torch.manual_seed(0)
    tokens, keys, values = 9, 4, 6
    query, key = (F.normalize(each, dim=-1, eps=0) for each in torch.randn(2, tokens, 1, keys))
    value, decay = torch.randn(tokens, 1, values), -torch.rand(tokens, 1, keys)
    beta, state = torch.rand(tokens, 1), torch.randn(1, keys, values)
    matrix, wanted = state[0].clone(), []
    for token in range(tokens):
        k, v, b = key[token, 0], value[token, 0], beta[token, 0]
        forget = torch.eye(keys) - b * torch.outer(k, k)
        matrix = forget @ torch.diag(decay[token, 0].exp()) @ matrix + b * torch.outer(k, v)
        wanted.append(matrix.T @ query[token, 0] / keys**0.5)
    torch.testing.assert_close(delta_rule(query, key, value, decay, beta, state)[:, 0], torch.stack(wanted))
    torch.testing.assert_close(state[0], matrix)


def test_the_gate() -> None:
    speed, bias = torch.tensor([0.5, 1.0]), torch.randn(6)
    raw = torch.randn(5, 6)
    plain, bounded = gate(raw, speed.log(), 3, bias), gate(raw, speed.log(), 3, bias, lower_bound=-5.0)
    shifted = (raw + bias).view(5, 2, 3)
    torch.testing.assert_close(plain[:, 1], -F.softplus(shifted[:, 1]))
    torch.testing.assert_close(bounded[:, 0], -5 * (0.5 * shifted[:, 0]).sigmoid())
