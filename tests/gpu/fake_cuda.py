"""vLLM's CUDA platform for the kind of GPU that ROPESWITCH_TEST_GPU names, without one (``pytest -p tests.gpu.fake_cuda``).

In a separate process: vLLM asks for its platform while it is imported.
"""

import os
import sys
from types import ModuleType

import torch

# Compiled modules of vLLM's CUDA build, which its Python looks for.
COMPILED = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
# Its compiled functions that are asked, while modules are imported, what the GPU can do.
ASKED = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8")
# The name and the compute capability.
GPUS = {"A100": ("NVIDIA A100-SXM4-80GB", (8, 0)), "H100": ("NVIDIA H100 80GB HBM3", (9, 0))}
# A library's ops go with it.
_OPS = torch.library.Library("_C", "FRAGMENT")


def install(gpu: str, capability: tuple[int, int]) -> None:
    """Make ``vllm.platforms.current_platform`` the CUDA platform of one such GPU, on which Triton works."""
    for name in COMPILED:
        sys.modules[name] = ModuleType(name)
    for name in ASKED:
        _OPS.define(f"{name}(int cuda_device_capability) -> bool")
        _OPS.impl(name, lambda capability: True, "CompositeExplicitAutograd")
    from triton.backends import backends

    backends["nvidia"].driver.is_active = lambda: True
    from vllm import platforms

    # The build's own word on what it was made for, which Triton's and the platform's detection read.
    platforms.vllm_version_matches_substr = lambda substr: False
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    answers = {
        "get_device_capability": DeviceCapability(*capability), "get_device_name": gpu, "is_fully_connected": True,
        "get_device_total_memory": 80 << 30, "device_count": 1,
    }  # fmt: skip
    methods = {name: classmethod(lambda cls, *_, value=value, **__: value) for name, value in answers.items()}
    platforms._current_platform = type("FakeCuda", (CudaPlatformBase,), methods)()


install(*GPUS[os.environ["ROPESWITCH_TEST_GPU"]])
