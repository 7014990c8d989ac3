"""``vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend``: subclassed to split each sequence's keys over ranks.

replaces: with decode context parallelism on CPUs, the attention backend, through ``register_backend``, and the function that
    stands in for the Triton kernel ``vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel``, through
    ``register_kernels``.
why: upstream's CPU attention neither returns the log-sum-exp nor supports a rank that holds part of a sequence, and its
    slot mapping asserts a single rank.
what differs: each rank writes its own share of the keys; tokens of other ranks get no slot. Queries are gathered over the
    ranks that share a KV head, each rank attends to the keys it holds, and the partial results are exchanged. Each rank
    merges those of its own heads with the attention among the step's new tokens, all in float32 (``kernels/``).
limits: causal self-attention over an unquantized cache, without sliding windows, ALiBi, soft caps, sinks or shared caches;
    CPUs without Triton, as in the CPU build.
when it can go: when vLLM's CPU attention and slot mapping support decode context parallelism.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed.parallel_state import get_dcp_group
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.attention.backend import (
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

from ropeswitch.kernels.causal_attention import causal_attention
from ropeswitch.kernels.local_slots import local_slots
from ropeswitch.kernels.merge_attention import merge_attention
from ropeswitch.kernels.paged_attention import paged_attention
from ropeswitch.kernels.write_cache import write_cache
from ropeswitch.model_patches.switch.config.settings import UnsupportedError

SLOTS = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"
# KV cache dtypes without scales.
PLAIN_CACHES = ("auto", "float16", "bfloat16", "float32")


def check_split_sequences(vllm_config: VllmConfig) -> None:
    """Refuse configurations that this backend does not support; vLLM has already checked its rules on ranks and KV heads."""
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    if vllm_config.model_config.use_mla:
        raise UnsupportedError(
            f"decode_context_parallel_size: {parallel.decode_context_parallel_size}: vLLM's latent attention on CPUs does "
            "not split a sequence over ranks; allowed: 1"
        )
    interleave = parallel.cp_kv_cache_interleave_size
    if interleave < 1 or cache.block_size % interleave:
        raise UnsupportedError(
            f"cp_kv_cache_interleave_size: {interleave} must divide block_size, which is {cache.block_size} tokens"
        )
    if cache.cache_dtype not in PLAIN_CACHES:
        raise UnsupportedError(
            f"kv_cache_dtype: {cache.cache_dtype!r}: the CPU attention that splits a sequence over ranks reads plain caches "
            f"only; allowed with decode_context_parallel_size {parallel.decode_context_parallel_size}: "
            f"{', '.join(PLAIN_CACHES)}"
        )


def register() -> None:
    """Register both in this process, after the platform's own; call before the model is built."""
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{SplitCPUAttentionBackend.__qualname__}")
    register_kernels({SLOTS: split_slot_mapping})


def split_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slot_mapping: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
    pad: int,
    triton_block_size: int,
) -> None:
    """Fill ``slot_mapping``, ``[max_num_tokens]`` int64: the step's slots, then ``pad``. Launched like the kernel."""
    requests = torch.arange(len(query_start_loc) - 1).repeat_interleave(query_start_loc.diff())
    count = len(requests)
    slot_mapping[count:max_num_tokens] = pad
    slot_mapping[:count] = local_slots(positions[:count], requests, block_table, block_size, ranks, rank, interleave)


class SplitCPUAttentionBackend(CPUAttentionBackend):
    """See the module docstring; the cache has upstream's layout: ``[blocks, KV heads, block_size, 2 * head_size]``."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @staticmethod
    def get_impl_cls() -> type["SplitCPUAttentionImpl"]:
        return SplitCPUAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["SplitCPUAttentionBuilder"]:
        return SplitCPUAttentionBuilder


@dataclass(frozen=True)
class SplitCPUAttentionMetadata(AttentionMetadata):
    """A step's metadata on one rank. All list the same requests with cached keys, but numbers of keys differ."""

    query_starts: list[int]  # `[requests + 1]` offsets of each request's tokens.
    cached_tokens: torch.Tensor  # `[rows]` indices of the tokens whose requests have cached keys on any rank.
    cached_starts: list[int]  # `[cached requests + 1]` offsets of each such request's tokens in `cached_tokens`.
    cached_lengths: list[int]  # Number of cached keys of each such request on this rank.
    block_table: torch.Tensor  # `[cached requests, blocks]` block numbers.


class SplitCPUAttentionBuilder(AttentionMetadataBuilder[SplitCPUAttentionMetadata]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        group = get_dcp_group()
        self.rank, self.ranks = group.rank_in_group, group.world_size
        self.interleave = self.vllm_config.parallel_config.cp_kv_cache_interleave_size

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> SplitCPUAttentionMetadata:
        """Build the step's metadata; raise UnsupportedError if its attention is not causal."""
        common = common_attn_metadata
        if common.causal is not True:
            raise UnsupportedError(
                "decode_context_parallel_size: attention that is not causal cannot be split over ranks"
            )
        starts = common.query_start_loc_cpu[: common.num_reqs + 1]
        queries = starts.diff()
        cached = common.seq_lens[: common.num_reqs] - queries
        requests = cached.nonzero().flatten()
        lengths = get_dcp_local_seq_lens(cached[requests], self.ranks, self.rank, self.interleave)
        return SplitCPUAttentionMetadata(
            query_starts=starts.tolist(),
            cached_tokens=(cached > 0).repeat_interleave(queries).nonzero().flatten(),
            cached_starts=[0, *queries[requests].cumsum(0).tolist()],
            cached_lengths=lengths.tolist(),
            block_table=common.block_table_tensor[requests],
        )


class SplitCPUAttentionImpl(AttentionImpl[SplitCPUAttentionMetadata]):
    can_return_lse_for_decode = True
    supports_dcp = True
    supports_mtp_with_cp_non_trivial_interleave_size = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        unsupported = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap or None,
            "attn_type": None if attn_type == AttentionType.DECODER else attn_type,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            "kv_cache_dtype": None if kv_cache_dtype in PLAIN_CACHES else kv_cache_dtype,
            "sinks": sinks,
        }
        for name, value in unsupported.items():
            if value is not None:
                ranks = get_current_vllm_config().parallel_config.decode_context_parallel_size
                raise UnsupportedError(
                    f"decode_context_parallel_size: {ranks}: a layer's attention has {name}, which the CPU attention that "
                    "splits a sequence over ranks does not support; allowed: 1"
                )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_size, self.scale = head_size, float(scale)
        self.kv_cache_dtype = kv_cache_dtype

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write this rank's share of the step's keys and values; ``slot_mapping`` is -1 for tokens of other ranks."""
        write_cache(key, value, kv_cache, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: SplitCPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the attention of the step's tokens, ``[tokens, heads, head_size]``, to ``output``."""
        # Without metadata this is a warm-up run.
        if attn_metadata is None:
            return output
        step = attn_metadata
        tokens = step.query_starts[-1]
        query, key, value = query[:tokens], key[:tokens], value[:tokens]
        out, lse = causal_attention(query, key, value, step.query_starts, self.scale)
        # Identical on every rank, as all must take part in the exchange.
        if len(rows := step.cached_tokens):
            parts, part_lses = self._attend_over_ranks(query[rows], kv_cache, step)
            merged, _ = merge_attention(torch.cat((parts, out[rows][None])), torch.cat((part_lses, lse[rows][None])))
            out[rows] = merged
        output[:tokens].view(out.shape).copy_(out)
        return output

    def _attend_over_ranks(
        self, query: torch.Tensor, kv_cache: torch.Tensor, step: SplitCPUAttentionMetadata
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each rank's outputs, ``[ranks, rows, heads, head_size]``, and log-sum-exps for this rank's heads."""
        group = get_dcp_group()
        everyones = group.all_gather(query.contiguous(), dim=1)
        out, lse = paged_attention(
            everyones, kv_cache, step.block_table, step.cached_lengths, step.cached_starts, self.scale
        )
        # One message per rank: its heads' outputs, each followed by its log-sum-exp.
        packed = (
            torch.cat((out, lse[..., None]), dim=-1).unflatten(1, (group.world_size, -1)).movedim(1, 0).contiguous()
        )
        received = torch.empty_like(packed)
        torch.distributed.all_to_all_single(received, packed, group=group.device_group)
        return received[..., :-1], received[..., -1]
