"""``vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector.NixlPullConnector``: subclassed to send sets with blocks.

replaces: the connector, through ``kv_transfer_config.kv_connector_module_path``.
why: blocks hold keys rotated with one factor set; a decode engine that loads them must have its request in the same set.
what differs: the prefill side's ``kv_transfer_params`` also name the set of its blocks, under a seal. The
    decode side loads blocks only in its request's own set. If they are in another, it computes the prompt itself and has
    the prefill side free the blocks. It also computes the prompt if the seal is broken, or if the prefill side may have
    given the blocks to other requests, because the request came too late or its transfer was already used. The handshake
    compares the ladders, so engines with different ladders transfer nothing.
limits: a seal guards against mistakes, not against a client that forges one: keep
    ``kv_transfer_params`` between the proxy and the engines, as upstream's own fields require. Blocks go only from the
    prefill side to the decode side.
when it can go: when connectors compare requests' ``cache_salt``.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as upstream
from vllm.logger import init_logger
from vllm.v1.request import Request

from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.placement import key_part
from ropeswitch.model_patches.switch.set_keys import ladder_digest

# A child of vLLM's logger, to inherit its format and level.
logger = init_logger("vllm.ropeswitch")

# Fields of `kv_transfer_params`: the key of the blocks' set (`set_keys.py`), the Unix time until which a decode engine may
# load them, and the seal.
SET, UNTIL, SEAL = "rope_set", "rope_until", "rope_seal"
# Upstream's fields that locate the blocks.
_PLACE = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids", "tp_size")
# Field for the prompt's digest on the prefill side, next to upstream's: some models' prompts are truncated later.
_PROMPT = "_rope_prompt"
# Monotonic time at which the decode side received the request.
_SEEN = "_rope_seen"
# Maximum used transfers that a decode side remembers.
MOST_USED = 1 << 16
# Fraction of the prefill side's lease in which the decode side must receive the request; its heartbeats begin in the rest.
IN_TIME = 2 / 3


class NixlPullConnector(upstream.NixlPullConnector):
    """See the module docstring."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = settings_of(vllm_config)
        assert settings is not None
        self._ladder = ladder_digest(settings)
        self._lease: float = self.kv_transfer_config.get_from_extra_config("kv_lease_duration", 30)
        # Monotonic times: the last step, and the earliest arrival of a request whose blocks are certain to be kept.
        self._last_step = self._kept_since = 0.0
        # Engine and request of every used transfer, oldest first.
        self._used: dict[tuple[Any, Any], None] = {}

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        worker = self.connector_worker
        assert worker is not None and worker.xfer_handshake_metadata is not None
        # If they differ, upstream's error message prints both sides' values.
        worker.compat_hash = f"{worker.compat_hash}, ladder {self._ladder}"
        worker.xfer_handshake_metadata = replace(worker.xfer_handshake_metadata, compatibility_hash=worker.compat_hash)

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        if params is not None:
            self._check(request, params)
        super().on_new_request(request)

    def _check(self, request: Request, params: dict[str, Any]) -> None:
        """Clear the fields of a new request's parameters that upstream would act on wrongly."""
        if params.get("do_remote_decode"):
            params[_PROMPT] = prompt_digest(request)
            # Upstream would wait for blocks from the decode side but never request them.
            params["remote_block_ids"] = None
        if not params.get("do_remote_prefill"):
            return
        if request.abort_immediately:
            # Rejected by the API server: it has no prompt, and only serves to free the prefill side's blocks.
            params["do_remote_prefill"] = is_address(params)
            return
        if not is_whole(params, prompt_digest(request)):
            reason = "kv_transfer_params are not those that a prefill engine returned for this prompt"
        elif time.time() > params[UNTIL]:
            reason = "it came too late for the prefill engine's blocks (kv_lease_duration), or the two clocks differ"
        else:
            params[_SEEN] = time.monotonic()
            return
        logger.warning("ropeswitch: request %s: %s; the prompt is computed here", request.request_id, reason)
        params["do_remote_prefill"] = False

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill"):
            if _transfer(params) in self._used:
                # For example, the first of several answers to one prompt has loaded the blocks.
                params["do_remote_prefill"] = False
            elif self._paused_since(params[_SEEN]):
                logger.warning(
                    "ropeswitch: request %s: this engine paused for so long that the prefill engine may have given up its "
                    "blocks; the prompt is computed here",
                    request.request_id,
                )
                return 0, False
            elif params[SET] != key_part(request.cache_salt):
                # Nothing is loaded, so upstream has the prefill side free its blocks, as after a prefix cache hit.
                logger.info(
                    "ropeswitch: request %s: the prefill engine used another factor set; the prompt is computed here",
                    request.request_id,
                )
                return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._record_step()
        return super().build_connector_meta(scheduler_output)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        self._record_use(request)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        # For a request that ends before it is scheduled.
        self._record_use(request)
        held, params = super().request_finished_all_groups(request, block_ids)
        # Unless the blocks cover the whole prompt, there is nothing to load.
        if params and held and params["remote_num_tokens"] >= request.num_prompt_tokens:
            assert request.kv_transfer_params is not None
            until = time.time() + IN_TIME * self._lease
            params = sealed(params, key_part(request.cache_salt), until, request.kv_transfer_params[_PROMPT])
        return held, params

    def _record_step(self) -> None:
        """Record a step. Each step sends the heartbeats that keep the prefill side's blocks; after a pause they are late."""
        now, longest = time.monotonic(), (1 - IN_TIME) * self._lease
        if now - self._last_step > longest:
            self._kept_since = now - longest
        self._last_step = now

    def _paused_since(self, seen: float) -> bool:
        """Return whether steps paused for too long since a request was seen; the step that looks it up counts."""
        self._record_step()
        return seen < self._kept_since

    def _record_use(self, request: Request) -> None:
        """Remember a transfer whose blocks upstream is about to load, or to have the prefill side free."""
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return
        self._used[_transfer(params)] = None
        if len(self._used) > MOST_USED:
            del self._used[next(iter(self._used))]


def prompt_digest(request: Any) -> str:
    """Return a digest of everything that decides the cached keys of a request's prompt, except the factor set."""
    found = hashlib.sha256(np.asarray(request.prompt_token_ids or (), dtype=np.int64).tobytes())
    adapter = request.lora_request.lora_name if request.lora_request else None
    found.update(json.dumps([adapter, [each.identifier for each in request.mm_features]]).encode())
    return found.hexdigest()[:32]


def sealed(params: Mapping[str, Any], key: str, until: float, prompt: str) -> dict[str, Any]:
    """Return upstream's parameters of a transfer with the key of its blocks' set, a deadline and the seal added.

    The seal binds the set to the prompt (:func:`prompt_digest`), the adapter and the blocks themselves.
    """
    whole = {**params, SET: key, UNTIL: until}
    return whole | {SEAL: _seal(whole, prompt)}


def is_whole(params: Mapping[str, Any], prompt: str) -> bool:
    """Return whether a transfer's parameters are those that :func:`sealed` made for this prompt."""
    return params.get(SEAL) == _seal(params, prompt)


def is_address(params: Mapping[str, Any]) -> bool:
    """Return whether a transfer's parameters name an engine, a request and its blocks in upstream's format."""
    texts = [params.get(field) for field in ("remote_engine_id", "remote_request_id", "remote_host")]
    numbers = [params.get(field) for field in ("remote_port", "tp_size")]
    numbers += [params.get(field, 1) for field in ("dcp_size", "pp_size")]
    return (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int) for each in numbers)
        and isinstance(params.get("remote_block_ids"), list | tuple)
    )


def _seal(params: Mapping[str, Any], prompt: str) -> str:
    bound = [params.get(field) for field in (SET, UNTIL, *_PLACE)]
    return hashlib.sha256(json.dumps([prompt, bound]).encode()).hexdigest()[:32]


def _transfer(params: dict[str, Any]) -> tuple[Any, Any]:
    return params.get("remote_engine_id"), params.get("remote_request_id")


# vLLM's other name for the class.
NixlConnector = NixlPullConnector
