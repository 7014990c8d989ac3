"""What KV connectors keep of a request between steps, dropped when the request's blocks or its block hashes are gone.

Connectors hear of a new request and of a finished one, and nothing in between. Some keep block ids and keys of a running
request, and go on from there.
"""

from collections.abc import Callable
from typing import Any

from vllm.v1.request import Request

from ropeswitch.model_patches.switch.connectors import MULTI, OFFLOADING


def forget(connector: Any, request: Request, *, keys: bool) -> None:
    """Have a scheduler's connector make anew what it keeps of a request that holds no blocks any more.

    Args:
        connector: ``vllm.distributed.kv_transfer.kv_connector.v1.KVConnectorBase_V1``, or None.
        request: The request.
        keys: Whether its block hashes were made anew too, in another factor set.
    """
    # By name, so that no connector's module is imported that the engine did not choose; a user's class may descend from one.
    for name in (each.__name__ for each in type(connector).__mro__):
        if name in _FORGET:
            _FORGET[name](connector, request, keys)


def _forget_in_all(connector: Any, request: Request, keys: bool) -> None:
    for each in connector.sub_connectors:
        forget(each, request, keys=keys)


def _forget_offloaded(connector: Any, request: Request, keys: bool) -> None:
    # An engine that reloads its tier has forgotten requests that it finished.
    state = connector.scheduler._req_status.get(request.request_id)
    for group in state.group_states if state is not None else ():
        # Upstream appends to both: the next step that runs the request brings all its block ids, and new hashes follow old.
        group.block_ids.clear()
        if keys:
            group.offload_keys.clear()
            group.next_stored_chunk_idx = 0


_FORGET: dict[str, Callable[[Any, Request, bool], None]] = {
    MULTI: _forget_in_all,
    OFFLOADING: _forget_offloaded,
}
