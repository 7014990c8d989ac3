"""Greedy generation that recomputes the whole sequence at every step, without a KV cache.

This is the reference a server must equal: at each token Hugging Face applies its factor set rule
to the whole sequence again, so a generation that crosses the limit is rotated afresh.
"""

import torch
from transformers import Phi3ForCausalLM

from tests.passkey_tiny.rope_sets import SetName, force_set


@torch.no_grad()
def generate(
    model: Phi3ForCausalLM, prompts: list[list[int]], new_tokens: int, forced: SetName | None = None
) -> list[list[int]]:
    """Greedy replies to prompts of one length, each up to and without the model's eos token.

    Args:
        model: any Phi-3; its dtype is the dtype computed in.
        prompts: token ids; all prompts have the same number of tokens.
        new_tokens: at most so many tokens are generated.
        forced: rotate every step with this set; None: Hugging Face's rule.

    Raises:
        ValueError: the prompts differ in length.
    """
    lengths = {len(prompt) for prompt in prompts}
    if len(lengths) != 1:
        raise ValueError(f"prompts have lengths {sorted(lengths)}; one batch needs one length")
    (length,) = lengths
    eos = model.config.eos_token_id
    ids = torch.tensor(prompts)
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    with force_set(model, forced):
        for _ in range(new_tokens):
            token = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1].argmax(-1)
            ids = torch.cat((ids, token[:, None]), dim=1)
            ended |= token == eos
            if ended.all():
                break
    replies = ids[:, length:].tolist()
    return [reply[: reply.index(eos)] if eos in reply else reply for reply in replies]
