"""vLLM's own configs, models and KV specs for a plan, built on a CPU without memory, ranks or an engine."""

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from vllm.config import ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.model_executor.models import registry
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.model_patches.guard.fingerprints import resolve
from tests.deploy.configs import Config

BLOCK_SIZE = 16
get_kv_cache_configs = resolve("vllm.v1.core.kv_cache_planning.get_kv_cache_configs")[2]
# 0.32.0 makes the groups itself.
make_groups = getattr(inspect.getmodule(get_kv_cache_configs), "get_global_kv_cache_groups", None)


def model_config(folder: Path, config: Config, max_model_len: int = 4096) -> ModelConfig:
    """vLLM's view of a config."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    # Not in a new process, which imports vLLM for ten seconds.
    with patch.object(registry, "_run_in_subprocess", lambda look: look()):
        return ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=max_model_len)


def refusal(model: ModelConfig, layout: Layout) -> str | None:
    """Why vLLM's configs refuse a layout, or None."""
    try:
        model.verify_with_parallel_config(_parallel(layout))
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return None


def build(monkeypatch: pytest.MonkeyPatch, model: ModelConfig, layout: Layout, stage: int) -> torch.nn.Module:
    """vLLM's own model as rank 0 of a stage would build it, without memory.

    Raises:
        AssertionError: where a layer cannot be split so.
    """
    sizes = {"_TP": (layout.tensor, 0), "_PP": (layout.pipeline, stage), "_EP": (layout.tensor, 0)}
    for name, (size, rank) in (sizes | dict.fromkeys(("_DP", "_PCP", "_DCP"), (1, 0))).items():
        monkeypatch.setattr(parallel_state, name, _group(size, rank))
    config = VllmConfig(model_config=model)
    # Set afterwards: as a whole, VllmConfig asks the machine for devices.
    config.parallel_config = _parallel(layout)
    architecture, _ = get_model_architecture(model)
    with set_current_vllm_config(config), torch.device("meta"), set_default_torch_dtype(model.dtype):
        return architecture(vllm_config=config)


def kv_cache(
    model: ModelConfig, layout: Layout, available: list[int], stage_layers: tuple[int, ...], dtype: torch.dtype
) -> tuple[VllmConfig, KVCacheConfig]:
    """Return the blocks that vLLM makes on stages with ``available`` bytes for KV each, after its own check of the length.

    Raises:
        ValueError: from vLLM, where a sequence of ``model.max_model_len`` tokens does not fit.
    """
    config = VllmConfig(model_config=model)
    config.parallel_config = _parallel(layout)
    config.cache_config.block_size = BLOCK_SIZE
    config.cache_config.kv_cache_layout = next(iter(KVCacheLayout)).name
    # A layer's spec, as `Attention.get_kv_cache_spec` makes it.
    heads, window = model.get_num_kv_heads(config.parallel_config), model.get_sliding_window()
    fields: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_heads": heads, "head_size": model.get_head_size()}
    fields["dtype"] = dtype
    spec: KVCacheSpec = FullAttentionSpec(**fields)
    if window is not None:
        spec = SlidingWindowSpec(sliding_window=window, **fields)
    starts = [sum(stage_layers[:stage]) for stage in range(len(stage_layers))]
    workers = [
        {f"layer.{index}": spec for index in range(start, start + layers)}
        for start, layers in zip(starts, stage_layers, strict=True)
    ]
    groups = () if make_groups is None else (make_groups(config, workers),)
    return config, get_kv_cache_configs(config, workers, available, *groups)[0]


def concurrency(config: VllmConfig, cache: KVCacheConfig, max_model_len: int) -> int:
    """Return the sequences that the blocks hold by vLLM's own sum, without the block it never uses."""
    cache.num_blocks -= 1
    config.model_config.max_model_len = max_model_len
    return int(get_max_concurrency_for_kv_cache_config(config, cache))


def _parallel(layout: Layout) -> ParallelConfig:
    return ParallelConfig(
        tensor_parallel_size=layout.tensor,
        decode_context_parallel_size=layout.decode_context,
        pipeline_parallel_size=layout.pipeline,
    )


def _group(size: int, rank: int) -> SimpleNamespace:
    return SimpleNamespace(
        world_size=size,
        rank_in_group=rank,
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        device_group=SimpleNamespace(size=lambda: size, rank=lambda: rank),
    )
