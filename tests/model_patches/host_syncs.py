"""Finds host synchronisation in code for a GPU, on a machine without one.

The code runs on ``torch.device("meta")`` in the GPU's place. Such tensors have shapes and no values, so an operation that
reads a value back raises: ``item()``, ``cpu()``, boolean masks, ``nonzero``, ``repeat_interleave`` without ``output_size``.
A copy to the device does not, so a dispatch mode refuses those from pageable memory, for which CUDA waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.utils import torch_utils

DEVICE = torch.device("meta")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)
# On a device, they copy Python's or NumPy's values there from pageable memory.
MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)


class HostSyncError(AssertionError):
    """An operation for which the host would wait."""


class _Copies(TorchDispatchMode):
    """Refuses copies to the device from memory that is not pinned, and those that are not asynchronous."""

    def __init__(self) -> None:
        super().__init__()
        self._pinned: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("pin_memory") and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            # Only an accelerator has such memory.
            self._pinned.append(func(*args, **kwargs | {"pin_memory": False}))
            return self._pinned[-1]
        if func in COPIES:
            source = args[-1] if func is COPIES[0] else args[1]
            target = torch.device(kwargs.get("device") or source.device) if func is COPIES[0] else args[0].device
            pinned = any(source.data_ptr() == each.data_ptr() for each in self._pinned) if source.is_cpu else False
            asynchronous = kwargs.get("non_blocking") or (func is COPIES[1] and args[2:] == (True,))
            if source.is_cpu and target != source.device and not (pinned and asynchronous):
                raise HostSyncError(f"{func}: copies {list(source.shape)} from pageable memory, or waits for the copy")
        if func in INDEXED and any(index is not None and index.device != args[0].device for index in args[1]):
            raise HostSyncError(f"{func}: the indices are on the host")
        return func(*args, **kwargs)


class _Makers(TorchFunctionMode):
    """Refuses tensors made on the device of the host's values, which no dispatch mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in MAKERS and not made.is_cpu and not (args and isinstance(args[0], torch.Tensor)):
            raise HostSyncError(f"torch.{func.__name__}: copies from pageable memory")
        index = args[1] if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) else ()
        if any(isinstance(each, list) for each in (index if isinstance(index, tuple) else (index,))):
            raise HostSyncError("indexing with a list: copies it from pageable memory")
        return made


@contextmanager
def no_host_syncs() -> Iterator[None]:
    """Raise where code inside, on tensors of :data:`DEVICE`, would have the host wait for a GPU.

    Raises:
        HostSyncError, RuntimeError, NotImplementedError: at the operation.
    """
    # The constant decides from 0.33.0 on.
    pins = patch.multiple(torch_utils, is_pin_memory_available=lambda: True, PIN_MEMORY=True)
    with pins, _Makers(), _Copies():
        yield
