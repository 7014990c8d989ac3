"""The Triton ops compile to machine code for A100 (8.0) and H100 (9.0) on a machine without either."""

import json
from typing import Any

import pytest

from tests.kernels.conftest import outside_the_interpreter

pytest.importorskip("triton", reason="Triton has no build for this machine")


@pytest.mark.full
@pytest.mark.parametrize("capability", [80, 90])
def test_machine_code_without_spills(capability: int) -> None:
    """Every variant assembles, keeps its values in registers, and moves contiguous bf16 16 bytes at a time."""
    printed = outside_the_interpreter("-m", "tests.kernels.compile_ahead", str(capability))
    kernels: dict[str, dict[str, Any]] = json.loads(printed)
    assert len(kernels) == 15
    for name, kernel in kernels.items():
        assert kernel["cubin_is_elf"], name
        assert not kernel["local"] and kernel["spilled_bytes"] == 0, name
        # 64 warps of 32 registers a thread fill a multiprocessor's file; half of them still hide memory's latency.
        assert kernel["registers"] <= 64, name
        assert ["v4", "b32"] in kernel["loads"] and ["v4", "b32"] in kernel["stores"], name
    for name in ("llama2-7b", "mistral-7b", "mistral-7b new", "one key head", "interleaved"):
        assert all(width == "v4" for width, _ in kernels[name]["stores"]), name
