"""Prints as JSON what configuration decides for stock vLLM and for an engine with a ladder, on both model runners.

``python -m tests.gpu.fake_cuda H100`` runs it on a GPU that is not there. Every decision is made by vLLM's and our own code.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from vllm import EngineArgs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.usage.usage_lib import UsageContext
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.selector import get_attn_backend

from ropeswitch.model_patches.guard import registry
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.engine.patching import patch_process
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server.app import vllm_adapter

KEY = {"ropeswitch": {"factors": str(BUNDLED_FACTORS)}}
# vLLM's choice, and the V1 runner.
RUNNERS = {"default": None, "v1": "0"}
SCHEDULERS = ("LengthAwareScheduler", "LengthAwareAsyncScheduler")


def config(runner: str, ours: bool, eager: bool, dtype: str) -> VllmConfig:
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    if (number := RUNNERS[runner]) is not None:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = number
    args = EngineArgs(
        model=str(BUNDLED_MODEL),
        dtype=dtype,
        enforce_eager=eager,
        max_model_len=1024,
        additional_config=KEY if ours else {},
    )
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def decided(made: VllmConfig) -> dict[str, Any]:
    """What stock vLLM and an engine with a ladder decide alike, but for the two classes."""
    compilation = made.compilation_config
    with set_current_vllm_config(made):
        model = made.model_config
        backend = get_attn_backend(model.get_head_size(), model.dtype, made.cache_config.cache_dtype)
    return {
        "device": made.device_config.device_type,
        "v2": made.use_v2_model_runner,
        "async": made.scheduler_config.async_scheduling,
        "attention": backend.get_name(),
        "mode": compilation.mode.name,
        "backend": compilation.backend,
        "graphs": compilation.cudagraph_mode.name,
        "captured": compilation.cudagraph_capture_sizes,
        "sequences": made.scheduler_config.max_num_seqs,
        "custom_ops": compilation.custom_ops,
        "splitting_ops": compilation.splitting_ops,
        "classes": [str(made.scheduler_config.scheduler_cls), str(made.parallel_config.worker_cls)],
    }


def built(made: VllmConfig) -> dict[str, Any]:
    """What the processes of an engine with a ladder build from its config, with nothing on a device."""
    changed = list(registry.mismatches(registry.for_engine(made)))
    settings = patch_process(made)
    worker: Any = resolve_obj_by_qualname(made.parallel_config.worker_cls)
    bare = worker.__new__(worker)
    bare.vllm_config, bare.device, bare.use_v2_model_runner = made, None, made.use_v2_model_runner
    with (
        patch("vllm.v1.worker.gpu.model_runner.GPUModelRunner", lambda *_: "upstream's V2"),
        patch("vllm.v1.worker.gpu_model_runner.GPUModelRunner", lambda *_: "upstream's V1"),
        patch("ropeswitch.model_patches.switch.engine.gpu_worker.LadderGPUModelRunner", lambda *_: "ours on V1"),
    ):
        runner = bare._make_model_runner()
    from vllm.v1.worker.gpu import model_states

    from ropeswitch.model_patches.switch.engine.gpu_model_state import give_state

    give_state(model := nn.Module(), made)
    factory: Any = resolve_obj_by_qualname(made.scheduler_config.scheduler_cls)
    with patch.dict(factory.__globals__, {name: lambda *_, name=name, **__: name for name in SCHEDULERS}):
        scheduler = factory(made)
    kernels = parts.ask("triton", "kernels", torch.device("cuda"))
    return {
        "changed": changed,
        "compared": len(registry.for_engine(made)),
        "in_play": sorted(record.target for record in registry.in_play(made)),
        "applied": sorted(registry.applied()),
        "parts": list(settings.parts),
        "worker": [each.__qualname__ for each in worker.__mro__[:3]],
        "runner": runner,
        "state": [each.__qualname__ for each in model_states.resolve_model_state_cls(made, model).__mro__[:2]],
        "scheduler": scheduler,
        "kernels": kernels.__name__,
    }


def cases() -> Iterator[tuple[str, bool, str]]:
    for runner in RUNNERS:
        for dtype in ("bfloat16", "float32"):
            yield runner, True, dtype
        yield runner, False, "bfloat16"


def main() -> None:
    found = []
    # Stock first: what a ladder's engine patches stays patched.
    stock = [decided(config(runner, False, eager, dtype)) for runner, eager, dtype in cases()]
    for (runner, eager, dtype), plain in zip(cases(), stock, strict=True):
        made = config(runner, True, eager, dtype)
        found.append({"runner": runner, "eager": eager, "dtype": dtype, "stock": plain, "ours": decided(made)})
        found[-1]["built"] = built(made)
        found[-1]["machine"] = asdict(
            vllm_adapter.machine(vllm_adapter.parse([str(BUNDLED_MODEL)], lambda parser: None))
        )
    print(json.dumps(found))
