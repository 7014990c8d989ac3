"""What an engine with a ladder decides and builds on a GPU, on both model runners; test_decisions.py runs it without one."""

import os
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from vllm import EngineArgs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.usage.usage_lib import UsageContext
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.selector import get_attn_backend

from ropeswitch.model_patches.guard import registry
from ropeswitch.model_patches.guard.fingerprints import resolve
from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.engine.patching import patch_process
from ropeswitch.model_patches.switch.releases import in_release
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server.app import vllm_adapter

KEY = {"ropeswitch": {"factors": str(BUNDLED_FACTORS)}}
# Whether the runner is vLLM's choice, V2, or V1; eager; dtype.
CASES = [(v2, *rest) for v2 in (True, False) for rest in ((True, "bfloat16"), (True, "float32"), (False, "bfloat16"))]
CLASSES = [
    "ropeswitch.model_patches.scheduling.scheduler.make_scheduler",
    "ropeswitch.model_patches.switch.engine.gpu_worker.LadderGPUWorker",
]
V1_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
# Patches of classes that are subclassed, whose upstream names stay upstream's.
SUBCLASSED = {
    "vllm.v1.core.sched.scheduler.Scheduler",
    "vllm.v1.worker.gpu.model_states.default.DefaultModelState",
    "vllm.v1.worker.gpu_worker.Worker",
    V1_RUNNER,
}
Case = tuple[bool, bool, str]


def config(ours: bool, v2: bool, eager: bool, dtype: str) -> VllmConfig:
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    if not v2:
        # Left set: the config asks again whenever its runner is read.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    more: dict[str, Any] = {"additional_config": KEY} if ours else {}
    args = EngineArgs(model=str(BUNDLED_MODEL), dtype=dtype, enforce_eager=eager, max_model_len=1024, **more)
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def decided(made: VllmConfig) -> dict[str, Any]:
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
        "graphs": compilation.cudagraph_mode.name,
        "captured": compilation.cudagraph_capture_sizes,
        "sequences": made.scheduler_config.max_num_seqs,
        "custom_ops": compilation.custom_ops,
        "splitting_ops": compilation.splitting_ops,
        "classes": [str(made.scheduler_config.scheduler_cls), str(made.parallel_config.worker_cls)],
    }


@pytest.fixture(scope="module")
def stock() -> dict[Case, dict[str, Any]]:
    """Stock vLLM's decisions, made first: what a ladder's engine patches stays patched."""
    return {case: decided(config(False, *case)) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_ladder_changes_scheduler_and_worker_alone(case: Case, stock: dict[Case, dict[str, Any]]) -> None:
    """Compilation, custom ops, CUDA graphs, attention, asynchronous scheduling and the runner are stock vLLM's choice."""
    ours, theirs = decided(config(True, *case)), stock[case]
    assert theirs.pop("classes") == ["None", "vllm.v1.worker.gpu_worker.Worker"]
    assert ours.pop("classes") == CLASSES
    assert ours == theirs and (ours["device"], ours["v2"]) == ("cuda", case[0])
    # Decisions that only a GPU makes, so this is no CPU's configuration.
    assert case[1] or (ours["mode"], ours["graphs"]) == ("VLLM_COMPILE", "FULL_AND_PIECEWISE")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_engine_is_built_of_the_ladder_s_classes_and_kernels(case: Case) -> None:
    made = config(True, *case)
    assert list(registry.mismatches(registry.for_engine(made))) == [] and len(registry.for_engine(made)) > 10
    patch_process(made)
    worker: Any = resolve_obj_by_qualname(made.parallel_config.worker_cls)
    bare = worker.__new__(worker)
    bare.vllm_config, bare.device, bare.use_v2_model_runner = made, None, made.use_v2_model_runner
    with (
        patch("vllm.v1.worker.gpu.model_runner.GPUModelRunner", lambda *_: "upstream's V2"),
        patch("ropeswitch.model_patches.switch.engine.gpu_worker.LadderGPUModelRunner", lambda *_: "ours on V1"),
    ):
        assert bare._make_model_runner() == ("upstream's V2" if case[0] else "ours on V1")
    from vllm.v1.worker.gpu import model_states

    from ropeswitch.model_patches.switch.engine.gpu_model_state import give_state

    give_state(model := nn.Module(), made)
    state = model_states.resolve_model_state_cls(made, model)
    assert [each.__qualname__ for each in state.__mro__[:2]] == ["LadderModelState", "DefaultModelState"]
    assert parts.ask("triton", "kernels", torch.device("cuda")).__name__ == "ropeswitch.model_patches.triton.kernels"
    here = {"always", "GPUs", "engine clients", "V2 runner" if case[0] else "V1 runner"}
    found = (it for it in PATCHES if it.kind != "unchanged" and in_release(it.target))
    in_play = {it.target for it in found if it.when in here}
    assert "vllm.v1.worker.gpu_worker.Worker" in in_play and (V1_RUNNER in in_play) == (not case[0])
    assert not any("cpu" in target for target in in_play)
    for target in in_play - SUBCLASSED:
        symbol = resolve(target)[2]
        assert (getattr(symbol, "__module__", None) or type(symbol).__module__).startswith("ropeswitch."), target
    # The server counts memory for the sequences that vLLM chooses.
    machine = vllm_adapter.machine(vllm_adapter.parse([str(BUNDLED_MODEL)], lambda parser: None))
    assert (machine.v2, machine.sequences) == (case[0], made.scheduler_config.max_num_seqs)
    assert (machine.device, machine.devices, machine.device_bytes) == ("cuda", 1, 80 << 30)
