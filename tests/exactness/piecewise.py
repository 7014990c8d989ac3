"""A pytest plugin (``-p tests.exactness.piecewise``) that compiles models on a CPU as vLLM does on a GPU.

The graph is split at attention, which is an operator of its own, and Inductor compiles each piece. Our Triton op is in the
pieces and runs in Triton's interpreter. CUDA graphs and the compilation of Triton are left out.
"""

import importlib
import os
import re
from pathlib import Path
from typing import Any

import torch

from tests.kernels.conftest import import_interpreted

_OPS = torch.library.Library("_C", "FRAGMENT")


def _install() -> None:
    """Done while the plugin is imported, before any conftest imports vLLM."""
    # Read from its cache, a model is not traced.
    os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"
    import_interpreted()
    from ropeswitch.model_patches.triton import part

    part.DEVICES.add("cpu")
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    upstream = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        mode = vllm_config.compilation_config.mode
        upstream(vllm_config)
        if mode == CompilationMode.VLLM_COMPILE:
            vllm_config.compilation_config.mode = mode
            # Where there are CUDA graphs, vLLM works them out of the sizes to capture.
            vllm_config.compilation_config.compile_sizes = []

    _name_ops_of_the_cuda_build()
    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)
    CpuPlatform.opaque_attention_op = staticmethod(lambda: True)


def _name_ops_of_the_cuda_build() -> None:
    """Define the ops that vLLM's passes compare each node with; no graph on a CPU has them."""
    # The build's own, which are not to be defined twice.
    importlib.import_module("vllm._custom_ops")
    from vllm.compilation.passes.utility import fix_functionalization

    source = Path(fix_functionalization.__file__).read_text(encoding="utf-8")
    for name in set(re.findall(r"torch\.ops\._C\.(\w+)", source)):
        if not hasattr(torch.ops._C, name):
            _OPS.define(f"{name}() -> ()")


_install()
