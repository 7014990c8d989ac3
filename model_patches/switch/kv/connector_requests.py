"""Resets the state that KV connectors keep for a request between steps, once its blocks or block hashes are invalid.

Connectors are notified when a request is new and when it finishes, but not in between. Some keep the block ids and keys of
a running request and append to them.
"""

from collections.abc import Callable
from typing import Any

from vllm.v1.request import Request

from ropeswitch.model_patches.switch.kv.connectors import MULTI, OFFLOADING


def forget(connector: Any, request: Request, *, keys: bool) -> None:
    """Reset a scheduler-side connector's state for a request whose next step sends all its block ids again.

    Args:
        connector: ``vllm.distributed.kv_transfer.kv_connector.v1.KVConnectorBase_V1``, or None.
        request: The request.
        keys: Whether its blocks were also rehashed, in another factor set.
    """
    # Matched by name, to avoid importing connectors that the engine does not use; a user's class may subclass one.
    for name in (each.__name__ for each in type(connector).__mro__):
        if name in _FORGET:
            _FORGET[name](connector, request, keys)


def _forget_in_all(connector: Any, request: Request, keys: bool) -> None:
    for each in connector.sub_connectors:
        forget(each, request, keys=keys)


def _forget_offloaded(connector: Any, request: Request, keys: bool) -> None:
    # Resetting the offloading cache drops the state of finished requests.
    state = connector.scheduler._req_status.get(request.request_id)
    for group in state.group_states if state is not None else ():
        # Upstream appends to both lists: the next step would add all block ids again, and new hashes after the old ones.
        group.block_ids.clear()
        if keys:
            group.offload_keys.clear()
            group.next_stored_chunk_idx = 0


_FORGET: dict[str, Callable[[Any, Request, bool], None]] = {
    MULTI: _forget_in_all,
    OFFLOADING: _forget_offloaded,
}
