"""``lmcache.integration.vllm.lmcache_mp_connector.LMCacheMPConnector``, subclassed to key by factor set even after a switch.

replaces: the connector, through ``kv_transfer_config.kv_connector_module_path``, which ``connectors.attach`` sets.
why: LMCache keys by tokens and ``cache_salt``, which it reads when it first sees a request and again after a preemption,
    but not while a lookup is pending, nor when a streaming session moves to its next set. Its keys do not contain adapters.
what differs: a request whose salt has changed gets a new tracker, and its lookup results are dropped. Client parameters that
    would crash upstream, and with it the engine, are ignored.
limits: verified versions of lmcache only (``connectors.py``).
when it can go: when LMCache rereads the salt whenever it looks up blocks again.
"""

import contextlib
import hashlib
import json
from typing import Any


def keep_scans_working() -> None:
    """Make llvmlite's library object, which LMCache imports with numba, report that it has no ``__dict__``.

    On CPUs, vLLM reads the ``__dict__`` of every value in every module to replace Triton kernels. That object takes any name
    for one of its functions, ``__dict__`` too, and the engine dies with an ``AttributeError``.
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


keep_scans_working()

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector as Upstream  # noqa: E402
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState  # noqa: E402
from vllm.logger import init_logger  # noqa: E402

# A child of vLLM's logger, to inherit its format and level.
logger = init_logger("vllm.ropeswitch")

# Limits of LMCache's `IPCCacheServerKey`, which raises on other salts in the engine's own loop.
LONGEST = 128
FORBIDDEN = frozenset("@/\\\x00")


def store_salt(request: Any) -> str:
    """Return the salt for a request's chunks: its ``cache_salt``, which names its factor set, if LMCache accepts it.

    A salt that LMCache would reject becomes a digest. So does the salt of a request with a LoRA adapter, since LMCache's
    keys do not contain the adapter's name.
    """
    salt: str = request.cache_salt
    adapter = request.lora_request and request.lora_request.lora_name
    if adapter is None and len(salt) <= LONGEST and not FORBIDDEN & set(salt):
        return salt
    return f"rope_set:{hashlib.sha256(json.dumps([salt, adapter]).encode()).hexdigest()}"


class LMCacheMPConnector(Upstream):
    """See the module docstring. The factory looks this class up by upstream's name."""

    def _get_or_create_request_tracker(self, request: Any) -> Any:
        salt = store_salt(request)
        tracker = self.request_trackers.get(request.request_id)
        if tracker is not None and tracker.cache_salt != salt:
            self._drop(tracker)
        tracker = super()._get_or_create_request_tracker(request)
        tracker.cache_salt = salt
        limit = tracker.max_offload_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            logger.warning(
                "ropeswitch: request %s: lmcache.max_offload_tokens of its kv_transfer_params is no number of tokens (%r); "
                "it is ignored",
                request.request_id,
                limit,
            )
            tracker.max_offload_tokens = None
        return tracker

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        if params is not None and request.request_id not in self.request_trackers:
            # The request ended before its lookup, so the counts that upstream would read do not exist.
            request.kv_transfer_params = {name: value for name, value in params.items() if name != "cached_token_stats"}
        finished: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
        return finished

    def _drop(self, tracker: Any) -> None:
        """Forget a request's state under its old salt, and release the chunks that the server keeps ready for it."""
        server, request_id = self.scheduler_adapter, tracker.request_id
        if tracker.state == LMCacheMPRequestState.PREFETCHING:
            # Waits for the lookup's receipt, so that its answer is not mistaken for the next lookup's.
            server.end_session(request_id)
            if tracker.num_lmcache_hit_tokens:
                server.free_lookup_locks(
                    token_ids=tracker.get_token_ids(),
                    start=0,
                    end=tracker.num_lmcache_hit_tokens,
                    request_id=request_id,
                    cache_salt=tracker.cache_salt,
                    request_configs=tracker.request_configs,
                )
        server.cleanup_lookup_result(request_id)
        self._cleanup_request_tracker(request_id)
