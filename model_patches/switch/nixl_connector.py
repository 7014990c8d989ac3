"""``vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector.NixlPullConnector``: subclassed to send sets with blocks.

replaces: the connector, through ``kv_transfer_config.kv_connector_module_path``.
why: blocks hold keys rotated with one factor set; a decode engine that takes them must have its request in the same one.
what differs: the prefill side's ``kv_transfer_params`` also name the set of its blocks, under a seal (``transfers.py``). The
    decode side takes blocks of its request's own set. With blocks of another one it computes the prompt itself and has the
    prefill side free them. Without a whole seal it does the same and asks the prefill side for nothing. The
    handshake compares the ladders too, so engines with different ones transfer nothing.
limits: a seal guards against mistakes, not against a client that forges one: keep ``kv_transfer_params`` between the proxy
    and the engines, as upstream's own fields need it. Blocks go from the prefill side to the decode side only.
when it can go: when connectors compare requests' ``cache_salt``.
"""

from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as upstream
from vllm.logger import init_logger
from vllm.v1.request import Request

from ropeswitch.model_patches.switch.request_set import assigned_key
from ropeswitch.model_patches.switch.set_keys import set_keys
from ropeswitch.model_patches.switch.settings import settings_of
from ropeswitch.model_patches.switch.transfers import SET, is_whole, ladder_digest, prompt_digest, sealed

# Below vLLM's own logger, which has its format and its level.
logger = init_logger("vllm.ropeswitch")

# The prefill side keeps the prompt's digest here, beside upstream's own notes: some models' prompts are cut short later.
_PROMPT = "_rope_prompt"


class NixlPullConnector(upstream.NixlPullConnector):
    """See the module's docstring."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = settings_of(vllm_config)
        assert settings is not None
        # Of the start: a ladder that takes its place brings keys of its own, which each transfer names.
        self._ladder = ladder_digest(settings.ladder, set_keys(settings))

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        worker = self.connector_worker
        assert worker is not None and worker.xfer_handshake_metadata is not None
        # Both are in the message when they differ.
        worker.compat_hash = f"{worker.compat_hash}, ladder {self._ladder}"
        worker.xfer_handshake_metadata = replace(worker.xfer_handshake_metadata, compatibility_hash=worker.compat_hash)

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        if params is not None:
            self._check(request, params)
        super().on_new_request(request)

    def _check(self, request: Request, params: dict[str, Any]) -> None:
        """Leave nothing in a new request's parameters that upstream would act on wrongly."""
        if params.get("do_remote_decode"):
            params[_PROMPT] = prompt_digest(request)
            # Upstream would wait for blocks of the decode side, and never ask for them.
            params["remote_block_ids"] = None
        # A request that the API server rejected has no prompt; it only frees the prefill side's blocks.
        if not params.get("do_remote_prefill") or request.abort_immediately:
            return
        if not is_whole(params, prompt_digest(request)):
            logger.warning(
                "ropeswitch: request %s: kv_transfer_params are not those that a prefill engine returned for this prompt; "
                "the prompt is computed here",
                request.request_id,
            )
            params["do_remote_prefill"] = False

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill") and params[SET] != assigned_key(request):
            # Nothing is loaded, so upstream has the prefill side free its blocks, as after a hit in the prefix cache.
            logger.info(
                "ropeswitch: request %s: the prefill engine used another factor set; the prompt is computed here",
                request.request_id,
            )
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        held, params = super().request_finished_all_groups(request, block_ids)
        # Without blocks of the whole prompt there is nothing to take.
        if params and held and params["remote_num_tokens"] >= request.num_prompt_tokens:
            assert request.kv_transfer_params is not None
            params = sealed(params, assigned_key(request), request.kv_transfer_params[_PROMPT])
        return held, params


# vLLM's other name for it.
NixlConnector = NixlPullConnector
