"""What configuration decides on an A100 and an H100 that are not there, with vLLM's own CUDA platform."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no build for this machine")

CLASSES = [
    "ropeswitch.model_patches.scheduling.scheduler.make_scheduler",
    "ropeswitch.model_patches.switch.engine.gpu_worker.LadderGPUWorker",
]
# Patches of classes that are subclassed, whose upstream names stay upstream's.
SUBCLASSED = {
    "vllm.v1.core.sched.scheduler.Scheduler",
    "vllm.v1.worker.gpu.model_states.default.DefaultModelState",
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
    "vllm.v1.worker.gpu_worker.Worker",
}


@pytest.fixture(scope="module", params=["A100", "H100"])
def cases(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu.fake_cuda", request.param]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    # vLLM's log comes before it.
    return json.loads(done.stdout.splitlines()[-1])


def test_a_ladder_changes_scheduler_and_worker_alone(cases: list[dict[str, Any]]) -> None:
    """Compilation, custom ops, CUDA graphs, attention, asynchronous scheduling and the runner are stock vLLM's choice."""
    assert len(cases) == 6
    for case in cases:
        ours, stock = dict(case["ours"]), dict(case["stock"])
        assert ours.pop("classes") == CLASSES
        assert stock.pop("classes") == ["None", "vllm.v1.worker.gpu_worker.Worker"]
        assert ours == stock


def test_what_is_decided(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        found = case["ours"]
        assert found["device"] == "cuda" and found["async"] and found["v2"] == (case["runner"] == "default")
        # TF32 in Triton's attention is what the tests turn off (settings.py).
        assert found["attention"] == ("TRITON_ATTN" if case["dtype"] == "float32" else "FLASH_ATTN")
        if case["eager"]:
            assert (found["mode"], found["graphs"], found["custom_ops"]) == ("NONE", "NONE", ["all"])
            continue
        assert (found["mode"], found["backend"]) == ("VLLM_COMPILE", "inductor")
        assert (found["graphs"], found["custom_ops"]) == ("FULL_AND_PIECEWISE", ["none"])
        assert found["captured"][0] == 1 and "vllm::unified_attention_with_output" in found["splitting_ops"]


def test_what_an_engine_is_built_of(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        built, v2 = case["built"], case["runner"] == "default"
        assert built["changed"] == [] and built["compared"] > 10
        assert built["worker"] == ["LadderGPUWorker", "LadderWorker", "Worker"]
        assert built["runner"] == ("upstream's V2" if v2 else "ours on V1")
        assert built["state"] == ["LadderModelState", "DefaultModelState"]
        assert built["scheduler"] == "LengthAwareAsyncScheduler"
        assert built["kernels"] == "ropeswitch.model_patches.triton.kernels"
        assert "vllm.v1.worker.gpu_worker.Worker" in built["in_play"]
        assert ("vllm.v1.worker.gpu_model_runner.GPUModelRunner" in built["in_play"]) == (not v2)
        assert not any("cpu" in target for target in built["in_play"])
        assert set(built["in_play"]) - set(built["applied"]) <= SUBCLASSED


def test_what_the_server_counts_memory_with(cases: list[dict[str, Any]]) -> None:
    """The runner and the sequences that vLLM chooses, which decide what it reserves."""
    for case in cases:
        machine, made = case["machine"], case["ours"]
        assert (machine["v2"], machine["sequences"]) == (made["v2"], made["sequences"])
        assert machine["sequences"] in (256, 1024)
        assert (machine["device"], machine["devices"], machine["device_bytes"]) == ("cuda", 1, 80 << 30)
