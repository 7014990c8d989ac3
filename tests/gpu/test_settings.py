"""What the tests set for a GPU holds: float32 products are exact, and engines start beside others."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.exactness import engines, plugin_engine
from tests.gpu.settings import VARIABLES
from tests.server import running


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("variables", "expected"), [({}, "tf32"), (VARIABLES, "ieee")])
def test_float32_products(capability: int, variables: dict[str, str], expected: str) -> None:
    """Compiled for A100 and H100, which need not be there."""
    pytest.importorskip("triton", reason="Triton has no build for this machine")
    environment = {name: value for name, value in os.environ.items() if name not in {*VARIABLES, "TRITON_INTERPRET"}}
    command = [sys.executable, "-m", "tests.gpu.dot_precision", str(capability)]
    done = subprocess.run(command, env=environment | variables, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == expected


def test_every_process_of_the_tests_has_them() -> None:
    pytest.importorskip("triton", reason="Triton has no build for this machine")
    import triton

    assert triton.knobs.language.fp32_default == "ieee"
    assert os.environ.items() >= VARIABLES.items() and running.environment().items() >= VARIABLES.items()


def test_an_engine_starts_where_most_of_the_memory_is_taken() -> None:
    """By vLLM's own rule, on a GPU of 80 GiB of which 6 are free."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.utils import request_memory

    snapshot: Any = SimpleNamespace(total_memory=80 << 30, free_memory=6 << 30, device_="cuda:0")
    flags = dict(zip(running.ENGINE, running.ENGINE[1:], strict=False))
    shares = [float(flags["--gpu-memory-utilization"])]
    shares += [arguments["gpu_memory_utilization"] for arguments in (engines.ENGINE, plugin_engine.ENGINE)]
    for share in shares:
        assert request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=share)) < snapshot.free_memory
    with pytest.raises(ValueError, match="Decrease GPU memory utilization"):
        request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=EngineArgs.gpu_memory_utilization))
