"""A pytest plugin (``-p tests.exactness.interpreted``) that runs vLLM's V2 model runner on a CPU.

The V2 runner prepares its inputs with Triton kernels. Triton's interpreter runs them on CPU tensors, slowly, once vLLM is
told that Triton has a CPU backend. ``VLLM_USE_V2_MODEL_RUNNER`` chooses the runner, as on a GPU.

The CPU platform also turns asynchronous scheduling off ("not required on CPU"); here ``ROPESWITCH_TEST_ASYNC`` chooses it.
"""

import os
from types import SimpleNamespace
from typing import Any


def install() -> None:
    """Done while the plugin is imported, before any conftest imports vLLM."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

    from vllm.platforms.cpu import CpuPlatform
    from vllm.triton_utils import HAS_TRITON

    assert HAS_TRITON, "vLLM did not take Triton's interpreter for a CPU backend"
    from ropeswitch.model_patches import step_rows

    # Our own kernels too, as on a GPU.
    step_rows.TRITON_DEVICES.add("cpu")
    upstream = CpuPlatform.check_and_update_config

    def with_async_scheduling(vllm_config: Any) -> None:
        upstream(vllm_config)
        vllm_config.scheduler_config.async_scheduling = os.environ["ROPESWITCH_TEST_ASYNC"] == "1"

    CpuPlatform.check_and_update_config = staticmethod(with_async_scheduling)


install()
