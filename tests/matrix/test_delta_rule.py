"""The gated delta rule in torch is transformers', whole and continued from a state."""

import torch
import torch.nn.functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from tests.matrix.delta_rule import delta_rule


def test_it_is_transformers() -> None:
    torch.manual_seed(0)
    tokens, heads, keys, values = 70, 3, 8, 16
    query, key = torch.randn(2, tokens, heads, keys)
    value, decay = torch.randn(tokens, heads, values), -F.softplus(torch.randn(tokens, heads))
    beta, state = torch.rand(tokens, heads), torch.randn(heads, keys, values)
    given = [each.unsqueeze(0) for each in (query, key, value, decay, beta)]
    options = {"initial_state": state.unsqueeze(0), "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    own, ours = state.clone(), []
    for part in (slice(0, 33), slice(33, tokens)):
        ours.append(delta_rule(query[part], key[part], value[part], decay[part], beta[part], own))
    for reference in (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule):
        wanted, last = reference(*given, **options)
        torch.testing.assert_close(torch.cat(ours), wanted[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(own, last[0], atol=1e-5, rtol=1e-5)
