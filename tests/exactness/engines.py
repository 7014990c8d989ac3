"""Engines for the tests: vLLM's own ``LLM`` with a ladder put on it, exactly as ``ropeswitch serve`` does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, EngineArgs, SamplingParams
from vllm.platforms import current_platform
from vllm.transformers_utils.config import get_config

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.plugin import KEY
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.model_patches.switch.unsupported import check_features, check_model
from tests.gpu.settings import MEMORY_SHARE

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "kv_cache_memory_bytes": 64 << 20,
    "gpu_memory_utilization": MEMORY_SHARE,
    "block_size": 32,
    "disable_log_stats": True,
    "seed": 0,
}


def engine(
    folder: Path,
    ladder: FactorLadder | Mapping[str, Any] | None = None,
    *,
    angles: str = "exact",
    policy: str = "length",
    **changes: Any,
) -> LLM:
    """Start an engine; ``changes`` are vLLM's own engine arguments.

    A mapping as ``ladder`` is the value of ``additional_config["ropeswitch"]``, which the plugin alone acts on.
    """
    arguments = ENGINE | {"model": str(folder)} | changes
    if isinstance(ladder, Mapping):
        return LLM(**arguments, additional_config={KEY: dict(ladder)})
    args = EngineArgs(**arguments)
    config = get_config(str(folder), trust_remote_code=False).to_dict()
    ladder = ladder or ladder_from_config(config)
    assert ladder is not None
    theta = check_model(config, ladder)
    check_features(args)
    settings = RopeSettings(ladder, theta, angles, policy=policy)
    configure(args, settings, config, device_name=current_platform.device_name)
    for field in ("hf_overrides", "max_model_len", "scheduler_cls", "worker_cls", "additional_config"):
        arguments[field] = getattr(args, field)
    return LLM(**arguments)


def prompts(lengths: list[int], vocabulary: int = 384, seed: int = 1) -> list[list[int]]:
    """Random token ids, without the special ones, of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(
        **(
            {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 1, "detokenize": False}
            | changes
        )
    )


def run(llm: LLM, token_lists: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[Any]:
    """All prompts in one batch; the outputs in order, as (tokens, log-probabilities) of the first choice."""
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in token_lists], params, use_tqdm=False)
    return [first_choice(output.outputs[0]) for output in outputs]


def first_choice(output: Any) -> tuple[list[int], list[float]]:
    tokens = list(output.token_ids)
    return tokens, [entry[token].logprob for token, entry in zip(tokens, output.logprobs, strict=True)]
