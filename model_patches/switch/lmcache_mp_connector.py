"""``lmcache.integration.vllm.lmcache_mp_connector.LMCacheMPConnector``, subclassed to key by factor set after a switch too.

replaces: the connector, through ``kv_transfer_config.kv_connector_module_path``, which ``connectors.attach`` sets.
why: LMCache keys by tokens and ``cache_salt``, which it reads when it first sees a request and again after a preemption,
    but not while a lookup is under way, nor when a streaming session moves to its next set. An adapter is in no key.
what differs: a request whose salt is another one now is tracked anew, and what was looked up for it is dropped.
limits: of lmcache, verified versions only (``lmcache_checks.py``).
when it can go: when LMCache reads the salt again where blocks are looked up again.
"""

from typing import Any

from ropeswitch.model_patches.switch.kernel_scan import keep_scans_working

# LMCache imports numba.
keep_scans_working()

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector as Upstream  # noqa: E402
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState  # noqa: E402

from ropeswitch.model_patches.switch.lmcache_keys import store_salt  # noqa: E402


class LMCacheMPConnector(Upstream):
    """The connector; see the module's docstring. The factory looks it up by upstream's name."""

    def _get_or_create_request_tracker(self, request: Any) -> Any:
        salt = store_salt(request)
        tracker = self.request_trackers.get(request.request_id)
        if tracker is not None and tracker.cache_salt != salt:
            self._drop(tracker)
        tracker = super()._get_or_create_request_tracker(request)
        tracker.cache_salt = salt
        return tracker

    def _drop(self, tracker: Any) -> None:
        """Forget a request's state under its old salt, and what the server keeps ready for it to load."""
        server, request_id = self.scheduler_adapter, tracker.request_id
        if tracker.state == LMCacheMPRequestState.PREFETCHING:
            # Waits for the lookup's receipt, so that no answer to it is taken for one to the next.
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
