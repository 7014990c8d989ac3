"""A pytest plugin (``-p tests.exactness.interpreted``) that runs on a CPU what vLLM keeps for GPUs.

The environment says what:

- ``VLLM_USE_V2_MODEL_RUNNER=1``: the V2 runner. It prepares its inputs with Triton kernels, which Triton's interpreter runs
  on CPU tensors, slowly, once vLLM is told that Triton has a CPU backend.
- ``ROPESWITCH_TEST_ASYNC=1``: asynchronous scheduling, which the CPU platform turns off ("not required on CPU").
- ``ROPESWITCH_TEST_TRITON=1``: our own Triton kernels, interpreted too.
"""

import inspect
import os
from functools import cache
from types import SimpleNamespace
from typing import Any


def _install() -> None:
    """Done while the plugin is imported, before any conftest imports vLLM."""
    os.environ["TRITON_INTERPRET"] = "1"
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1":
        _interpret_upstream()
    _allow_async_scheduling()
    if os.environ["ROPESWITCH_TEST_TRITON"] == "1":
        from ropeswitch.model_patches.triton import part

        part.DEVICES.add("cpu")


def _interpret_upstream() -> None:
    # A few of vLLM's functions are compiled even in eager mode, by Inductor, which wants a real Triton.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    from triton.backends import backends
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions

    # Skips overflow checks, which GPUs make in debug mode only, and works out the members of Triton's modules, signatures
    # and NumPy's types once: together two fifths of the time.
    interpreter.interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)
    once = {name: cache(getattr(inspect, name)) for name in ("getmembers", "getfullargspec")}
    interpreter.inspect = SimpleNamespace(**vars(inspect) | once)
    of_type, of_name = interpreter._get_np_dtype, dict[str, Any]()
    interpreter._get_np_dtype = lambda kind: of_name.get(kind.name) or of_name.setdefault(kind.name, of_type(kind))
    _patch_triton_once(interpreter)
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    # A compiled kernel may combine conditions into a mask of small integers; the interpreter's C++ takes booleans only.
    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **kwargs: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return load(self, ptrs, mask, *rest, **kwargs)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, ptrs, value, mask, *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store

    from vllm.triton_utils import HAS_TRITON

    assert HAS_TRITON, "vLLM did not take Triton's interpreter for a CPU backend"


def _patch_triton_once(interpreter: Any) -> None:
    """Leave Triton's language patched: its interpreter patches it anew for each call of a kernel and of its functions."""
    upstream, patched = interpreter._patch_lang, set()

    def patch_lang(fn: Any) -> Any:
        seen = frozenset(id(each) for each in fn.__globals__.values() if inspect.ismodule(each)) & languages
        if seen not in patched:
            patched.add(seen)
            upstream(fn)
        return interpreter._LangPatchScope()

    languages = {id(interpreter.tl), id(interpreter.tl.core)}
    interpreter._patch_lang = patch_lang


def _allow_async_scheduling() -> None:
    from vllm.platforms.cpu import CpuPlatform

    upstream = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        upstream(vllm_config)
        vllm_config.scheduler_config.async_scheduling = os.environ["ROPESWITCH_TEST_ASYNC"] == "1"

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)


_install()
