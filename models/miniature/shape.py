"""The miniature's shape: the LongRoPE paper's ratios, at a window of 512 tokens unless another is asked for."""

from math import log, sqrt

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from ropeswitch.factors.factor_set import FactorSet

WINDOW = 512
THETA = 10000.0
HEADS, HEAD_DIM, HIDDEN, LAYERS = 2, 32, 192, 2
PAIRS = HEAD_DIM // 2
LOOKING_BACK, BIAS, WRITING, COMPARING = 6, 4.0, 0.0128, 8.0
"""Where training begins, see :func:`fresh_model`: how many of the fastest pairs tell the first layer's heads where to look,
how firmly, how loudly those heads write, and how firmly the second layer's compare."""
RATIO = 512
"""Windows of the longest text."""


def attention_factor(window: int = WINDOW) -> float:
    """Of every set, as published LongRoPE models have one for all of theirs: sqrt(1 + ln s / ln L)."""
    return sqrt(1 + log(RATIO) / log(window))


def plain(window: int = WINDOW) -> FactorSet:
    """What the base model is trained with."""
    return FactorSet("plain", window, (1.0,) * PAIRS)


def base_config(tokenizer: PreTrainedTokenizerBase, window: int = WINDOW) -> LlamaConfig:
    """The model as it is trained and searched: the window, and no factors."""
    return _config(tokenizer, window, {"rope_type": "default", "rope_theta": THETA})


def model_config(
    tokenizer: PreTrainedTokenizerBase, short: FactorSet, long: FactorSet, window: int = WINDOW
) -> LlamaConfig:
    """The finished model: its config.json says two lists, ``short`` up to its end and ``long`` above."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": THETA,
        "short_factor": list(short.factors),
        "long_factor": list(long.factors),
        "attention_factor": long.scale,
        "original_max_position_embeddings": short.max_length,
    }
    return _config(tokenizer, RATIO * window, rope)


def _config(tokenizer: PreTrainedTokenizerBase, longest: int, rope: dict[str, object]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        attention_bias=True,
        # About 1 / sqrt(hidden): with the usual 0.02 attention starts so flat that copying is learnt late.
        initializer_range=0.06,
        max_position_embeddings=longest,
        rope_parameters=rope,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def fresh_model(tokenizer: PreTrainedTokenizerBase, window: int = WINDOW) -> LlamaForCausalLM:
    """A model whose random weights are tied to each other as copying needs it, which small models else learn very late.

    The first layer's heads begin as looking 1, 2, ... tokens back (their key bias is their query bias, rotated so far) and
    as writing what they find there, read in one subspace, into one subspace each. The second layer's head 0 begins as
    comparing a token with what was written 1 back, an induction head (arXiv:2209.11895), and head 1 as comparing what was
    written 1 back with what was written 2 back; both copy what they find, their output matrices being the transposed value
    matrices ("Mimetic initialization", arXiv:2305.09828). Blocks write no more than embeddings are.
    """
    model = LlamaForCausalLM(base_config(tokenizer, window))
    first, second = (layer.self_attn for layer in model.model.layers)
    heads = [slice(head * HEAD_DIM, (head + 1) * HEAD_DIM) for head in range(HEADS)]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(0.1)
        read = first.v_proj.weight[heads[0]].clone()
        written = [torch.randn(HIDDEN, HEAD_DIM) * WRITING for _ in heads]
        for head, rows in enumerate(heads):
            first.v_proj.weight[rows] = read
            first.o_proj.weight[:, rows] = written[head]
            query, key = first.q_proj.bias[rows], first.k_proj.bias[rows]
            angles = (head + 1) * torch.arange(PAIRS).mul(-2 / HEAD_DIM * log(THETA)).exp()
            for pair in range(LOOKING_BACK):
                query[[pair, pair + PAIRS]] = BIAS
                cos, sin = angles[pair].cos(), angles[pair].sin()
                key[[pair, pair + PAIRS]] = BIAS * torch.stack((cos - sin, cos + sin))
        second.o_proj.weight.copy_(0.3 * second.v_proj.weight.T)
        second.q_proj.weight[heads[0]] = 2.0 * read
        second.k_proj.weight[heads[0]] = COMPARING * written[0].T
        second.q_proj.weight[heads[1]] = COMPARING / 2 * written[0].T
        second.k_proj.weight[heads[1]] = COMPARING * written[1].T
    return model
