"""Qwen 4's indexer with rows, interpreted: its queries and its groups' keys are those of Transformers' indexer."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen4_exp import modeling_qwen4_exp as hugging_face
from vllm.models.qwen4_exp.common import qsa_cache
from vllm.models.qwen4_exp.nvidia import indexer_qsa
from vllm.models.qwen4_exp.nvidia.ops import qsa, qsa_indexer
from vllm.v1.attention.backend import CommonAttentionMetadata

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.rows import group_rows
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation
from ropeswitch.model_patches.switch.rows.step_rows import StepRows

HEADS, DIM, ROTARY, RATIO, BLOCK, WIDTH = 2, 16, 8, 4, 8, 64
TEXT = SimpleNamespace(
    indexer_n_heads=HEADS, indexer_kv_heads=1, indexer_head_dim=DIM, indexer_budget=8, indexer_compress_ratio=RATIO,
    rms_norm_eps=1e-6, hidden_size=3 * DIM,
)  # fmt: skip
SETS = (FactorSet("short", 16, (1.0, 1.0, 1.0, 1.0)), FactorSet("long", 64, (1.0, 2.0, 3.0, 4.0), scale=1.1))
# Each step's requests and how many tokens they have in it; a group of four may begin steps before it ends.
STEPS = ([(0, 10), (1, 7)], [(0, 1), (1, 6)], [(1, 1), (0, 5)])


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    values = x.float()
    return (values * (values.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * (1 + weight.float())).to(x.dtype)


def reference(projected: Tensor, weights: tuple[Tensor, Tensor], each: FactorSet, monkeypatch: Any) -> list[Tensor]:
    """Return the queries ``[tokens, heads, dim]`` and keys of complete groups ``[groups, dim]`` of Transformers' indexer."""
    indexer = hugging_face.Qwen4ExpTextQSAIndexer(TEXT, 0)
    indexer.index_qk_proj = nn.Identity()
    for norm, weight in zip((indexer.q_layernorm, indexer.k_layernorm), weights, strict=True):
        norm.weight = nn.Parameter(weight.float())
    frequencies = 1 / (torch.tensor(each.factors) * 100 ** (torch.arange(0, ROTARY, 2) / ROTARY))
    angles = (torch.arange(len(projected))[:, None] * frequencies).repeat(1, 2)[None]
    found, name, rotate = [], "apply_rotary_pos_emb", hugging_face.apply_rotary_pos_emb
    monkeypatch.setattr(hugging_face, name, lambda *a, **k: found.append(rotate(*a, **k)) or found[-1])
    mask = torch.ones(len(projected), len(projected), dtype=torch.bool).tril()[None, None]
    indexer(projected.float()[None], (angles.cos() * each.scale, angles.sin() * each.scale), mask, None)
    monkeypatch.undo()
    return [found[0][0], found[-1][:, 0]]


def build(mrope: bool) -> tuple[Any, StepRows, Any]:
    """Return upstream's indexer, its rows, and what its metadata builders take for a config."""
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=BLOCK), compilation_config=SimpleNamespace(static_forward_context={}),
        model_config=SimpleNamespace(dtype=torch.bfloat16, uses_mrope=mrope), num_speculative_tokens=0,
        attention_config=SimpleNamespace(resolve_indexer_kv_dtype=lambda default: default), speculative_config=None,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=WIDTH, max_num_seqs=4),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )  # fmt: skip
    rotation = Rotation(100.0, ROTARY, axes=(0, 1, 2, 0) if mrope else None)
    model = nn.Module()
    rotary = LadderRotaryEmbedding(2 * DIM, rotation, neox=True)  # The attention's heads are larger than the indexer's.
    model.indexer = indexer_qsa.QSAIndexer(vllm_config=config, config=TEXT, layer_id=0, rotary_emb=rotary, prefix="i")
    rows = StepRows(RopeSettings(FactorLadder(SETS), 100.0), WIDTH, WIDTH, torch.device("cpu"))
    rows.bind(model)
    return model.indexer, rows, config


@pytest.mark.parametrize("mrope", [False, True])
def test_queries_and_groups_are_those_of_transformers(mrope: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    weights = torch.rand(2, DIM).unbind()
    projected = [torch.randn(16, (HEADS + 1) * DIM).bfloat16() for _ in SETS]
    expected = [reference(one, weights, each, monkeypatch) for one, each in zip(projected, SETS, strict=True)]
    monkeypatch.setattr(indexer_qsa, "ReplicatedLinear", lambda *_, **__: nn.Identity())
    monkeypatch.setattr(indexer_qsa, "GemmaRMSNorm", lambda _, eps: SimpleNamespace(variance_epsilon=eps))
    monkeypatch.setattr(qsa_cache, "build_qsa_metadata", qsa_cache._build_qsa_metadata_torch)
    monkeypatch.setitem(sys.modules, "flashinfer.norm", SimpleNamespace(gemma_rmsnorm=normed))
    monkeypatch.setattr(indexer_qsa, "apply_qsa_rope", group_rows.rotating_by_rows(indexer_qsa.apply_qsa_rope))
    compress = group_rows.telling_groups(qsa.qsa_compress_groups_with_ratio)
    monkeypatch.setattr(qsa, "qsa_compress_groups_with_ratio", compress)
    indexer, rows, config = build(mrope)
    indexer.q_layernorm.weight, indexer.k_layernorm.weight = weights
    # What selects tokens by them has no CPU kernel.
    queries = list[Tensor]()
    for name in ("qsa_select_paged_decode", "qsa_select_paged_prefill"):
        monkeypatch.setattr(qsa_indexer, name, lambda query, *_: queries.append(query))
    monkeypatch.setattr(qsa_indexer, "expand_qsa_block_indices", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True), raising=False)
    caches = [indexer.raw_key_cache, indexer.compressed_key_cache]
    specs = [cache.get_kv_cache_spec(config) for cache in caches]
    for cache, spec in zip(caches, specs, strict=True):
        cache.kv_cache = torch.zeros(8, spec.num_states, 1, cache.head_size, dtype=torch.bfloat16)
    builders = [qsa_cache.QSAMetadataBuilder(spec, ["i"], config, torch.device("cpu")) for spec in specs]
    tables, done = [torch.tensor([[3], [5]]), torch.tensor([[2, 6], [7, 1]])], torch.tensor([0, 0])
    found = list[list[Tensor]]([[], []])
    for step in STEPS:
        requests, counts = (torch.tensor(each) for each in zip(*step, strict=True))
        firsts = done[requests]
        done[requests] += counts
        spans = [range(*span) for span in zip(firsts.tolist(), done[requests].tolist(), strict=True)]
        positions = torch.tensor([position for span in spans for position in span])
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).int()
        tokens, lengths = len(positions), done[requests].int()
        rows.fill(positions.expand(3, -1) if mrope else positions, requests.numpy(), starts)
        forward = {}
        for cache, builder, table in zip(caches, builders, tables, strict=True):
            common = CommonAttentionMetadata(
                starts, starts, lengths, len(step), tokens, int(counts.max()), int(lengths.max()), table[requests].int(),
                torch.zeros(tokens, dtype=torch.int64),
            )  # fmt: skip
            forward[cache.prefix] = builder.build(0, common)
        monkeypatch.setattr(indexer_qsa, "get_forward_context", lambda now=forward: SimpleNamespace(attn_metadata=now))
        given = torch.cat([projected[request][span] for (request, _), span in zip(step, spans, strict=True)])
        numbers = rows.numbers[:tokens].expand(3, -1) if mrope else rows.numbers[:tokens]
        indexer(given, numbers, attn=SimpleNamespace(use_fused_qsa_prepare=False))
        for request, part in zip(requests.tolist(), torch.cat(queries).split(counts.tolist()), strict=True):
            found[request].append(part)
        queries.clear()
    for request, (asked, keys) in enumerate(expected):
        cached = caches[1].kv_cache[tables[1][request], :, 0].flatten(0, 1)[: (4, 3)[request]].float()
        torch.testing.assert_close(torch.cat(found[request]).float(), asked[: done[request]], atol=0.03, rtol=0)
        torch.testing.assert_close(cached, keys[: len(cached)], atol=0.03, rtol=0)
        assert (cached - expected[1 - request][1][: len(cached)]).abs().max() > 0.5
