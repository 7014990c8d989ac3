"""Keeps vLLM's kernel scan working in a process that has imported numba, as LMCache does."""

import contextlib
from typing import Any


def keep_scans_working() -> None:
    """Make llvmlite's library object report that it has no ``__dict__``.

    On CPUs, vLLM reads the ``__dict__`` of every value in every module to replace Triton kernels. llvmlite's library object
    treats any name as one of its functions, ``__dict__`` included, and the engine dies with an ``AttributeError``.
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
