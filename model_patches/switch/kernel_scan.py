"""Keeps vLLM's search for kernels working in a process that has imported numba, as LMCache does."""

import contextlib
from typing import Any


def keep_scans_working() -> None:
    """Have llvmlite's library answer that it has no ``__dict__``.

    On CPUs vLLM reads the ``__dict__`` of every value in every module to replace Triton kernels. llvmlite's library takes
    each name for a function of its own, that one too, and the engine ends with an ``AttributeError``.
    """
    with contextlib.suppress(ImportError):
        from llvmlite.binding import ffi

        library = type(ffi.lib)
        if hasattr(library, "knows_its_own_names"):
            return
        upstream = library.__getattr__

        def __getattr__(self: Any, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return upstream(self, name)

        library.__getattr__ = __getattr__
        library.knows_its_own_names = True
