"""vLLM's KV connectors: how each one's keys include the factor set, or why it is refused.

Cached keys leave the engine rotated with one factor set, so the key that a connector stores them under must identify that
set. Every request's ``cache_salt`` does (``set_keys.py``), and so do the block hashes computed with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ropeswitch.model_patches.switch.config.settings import UnsupportedError

# Delegates to several other connectors.
MULTI = "MultiConnector"
OFFLOADING = "OffloadingConnector"
LMCACHE_MP = "LMCacheMPConnector"
LMCACHE_VERIFIED = ("0.5.6",)
# Field of `kv_connector_extra_config` with which a user vouches for a connector that is not vLLM's.
VOUCHED = "rope_set_in_keys"

_TOKENS_ALONE = "its keys are made of tokens alone, so blocks of different factor sets would be mixed up"
_IN_PARAMETERS = "kv_transfer_params, which name the set of a transfer's blocks"
# Our module; its classes have upstream's names.
_NIXL = "ropeswitch.model_patches.switch.kv.nixl_connector"
# Refused values in NIXL's `kv_connector_extra_config`: (field, value, reason).
_NIXL_REFUSED = (
    ("bidirectional_kv_xfer", True, "blocks that go back to the prefill side do not name their set; leave it out"),
    ("enforce_handshake_compat", False, "engines with different ladders must not exchange blocks; leave it out"),
)
_LMCACHE_MP_REFUSED = (
    ("lmcache.mp.lazy_offload", True, "blocks are stored after their request has moved to another set; leave it out"),
    ("lmcache.mp.transfer_intermediate_tensors", True, "it has not been verified; leave it out"),
)
# A paused server was mistaken for dead, and later wrote old keys into other requests' blocks (seen on CPUs).
_LMCACHE_MP_FIXED = (
    (
        "lmcache.mp.mp_transfer_mode",
        "engine_driven",
        "a server that copies blocks itself writes into those of other requests after a pause",
    ),
)


@dataclass(frozen=True)
class Connector:
    """One of vLLM's connectors: how the factor set gets into its keys, or else why it is refused."""

    name: str
    keys: str | None = None
    refusal: str | None = None
    module: str | None = None  # Ours, with its subclass; None to use upstream's class.
    # Refused values in its `kv_connector_extra_config`: (field, value, reason).
    refused: tuple[tuple[str, Any, str], ...] = ()
    # Required values in it: (field, value, reason against any other).
    fixed: tuple[tuple[str, Any, str], ...] = ()


# Every connector registered in vllm.distributed.kv_transfer.kv_connector.factory.
CONNECTORS = (
    Connector(OFFLOADING, keys="block hashes"),
    Connector(MULTI, keys="those of its connectors, each of which must be allowed"),
    Connector("SimpleCPUOffloadConnector", refusal="it copies between a GPU and the host, and has not been verified"),
    Connector(
        "LMCacheConnectorV1",
        refusal="LMCache reads a request's tags once, and some of its stores leave them out of keys; use LMCacheMPConnector",
    ),
    Connector(
        LMCACHE_MP,
        keys="cache_salt",
        module="ropeswitch.model_patches.switch.kv.lmcache_mp_connector",
        refused=_LMCACHE_MP_REFUSED,
        fixed=_LMCACHE_MP_FIXED,
    ),
    Connector(
        "FlexKVConnectorV1", refusal="a separate package computes its keys, from tokens alone as far as vLLM shows"
    ),
    Connector("MooncakeStoreConnector", refusal="its keys are block hashes, but it has not been verified"),
    Connector("HF3FSKVConnector", refusal=_TOKENS_ALONE),
    Connector("ExampleConnector", refusal=_TOKENS_ALONE),
    Connector("ExampleHiddenStatesConnector", refusal="it needs a draft model that hands out hidden states"),
    Connector("NixlConnector", keys=_IN_PARAMETERS, module=_NIXL, refused=_NIXL_REFUSED),
    Connector("NixlPullConnector", keys=_IN_PARAMETERS, module=_NIXL, refused=_NIXL_REFUSED),
    Connector(
        "NixlPushConnector", refusal="its prefill side finds a request's blocks by the request ID that clients choose"
    ),
    Connector(
        "MooncakeConnector", refusal="its decode side starts before the prefill side says which factor set it used"
    ),
    Connector("MoRIIOConnector", refusal="it needs AMD GPUs, whose model runner is not patched"),
    Connector("HiSparseConnector", refusal="it serves sparse attention, whose indexer no ladder rotates"),
    Connector("DecodeBenchConnector", refusal="it fills the cache with dummy values, so no answer is right"),
)
BY_NAME = {connector.name: connector for connector in CONNECTORS}
ALLOWED = tuple(connector.name for connector in CONNECTORS if connector.refusal is None)


@dataclass(frozen=True)
class Configured:
    """A connector in an engine's config, with its ``kv_connector_`` fields; ``where`` names their place, for messages."""

    where: str
    name: str
    module_path: str | None
    extra_config: Mapping[str, Any]


def configured(kv_transfer_config: Any) -> Iterator[Configured]:
    """Yield every connector in an engine's ``KVTransferConfig``; a ``MultiConnector`` comes before its own connectors.

    None has no connector.

    Raises:
        UnsupportedError: when a connector has no name, or its options or a ``MultiConnector``'s list are malformed.
    """
    if kv_transfer_config is not None:
        yield from _configured("kv_transfer_config", vars(kv_transfer_config))


def _configured(where: str, values: Mapping[str, Any]) -> Iterator[Configured]:
    name, extra = values.get("kv_connector"), values.get("kv_connector_extra_config") or {}
    if not isinstance(name, str) or not name:
        raise UnsupportedError(f"{where}.kv_connector: {name!r} must be one of {', '.join(ALLOWED)}")
    field = f"{where}.kv_connector_extra_config"
    if not isinstance(extra, Mapping):
        raise UnsupportedError(f"{field}: {extra!r} must be a JSON object")
    module_path = values.get("kv_connector_module_path")
    yield Configured(where, name, module_path, extra)
    if name != MULTI or module_path:
        return
    children = extra.get("connectors")
    if not isinstance(children, list) or not children or not all(isinstance(each, Mapping) for each in children):
        raise UnsupportedError(f"{field}.connectors: {children!r} must be a list of JSON objects, one per connector")
    for index, each in enumerate(children):
        yield from _configured(f"{field}.connectors[{index}]", each)


def attach(kv_transfer_config: Any) -> None:
    """Have a checked ``KVTransferConfig``, or None, load our connector subclasses with their fixed options; idempotent."""
    if kv_transfer_config is None:
        return
    for each in (vars(kv_transfer_config), *kv_transfer_config.kv_connector_extra_config.get("connectors", ())):
        if (module := _module(name := each.get("kv_connector"))) is not None:
            each["kv_connector_module_path"] = module
            fixed = {field: value for field, value, _ in BY_NAME[name].fixed}
            each["kv_connector_extra_config"] = (each.get("kv_connector_extra_config") or {}) | fixed


def _module(name: Any) -> str | None:
    """Return our module with the subclass of one of vLLM's connectors, or None."""
    return BY_NAME[name].module if name in BY_NAME else None


def check_connector(kv_transfer_config: Any, *, attached: bool = False) -> None:
    """Refuse a ``KVTransferConfig`` that may mix up blocks of different factor sets; None is allowed.

    ``attached``: our subclasses must already be configured (:func:`attach`).

    Raises:
        UnsupportedError: with the field, the connector's name and the reason.
    """
    for each in configured(kv_transfer_config):
        where = f"{each.where}.kv_connector: {each.name!r}"
        if (ours := _module(each.name)) is not None and each.module_path in ((ours,) if attached else (ours, None)):
            _check_options(each)
            if each.name == LMCACHE_MP:
                _check_lmcache_version(where)
            continue
        if each.module_path:
            if each.extra_config.get(VOUCHED) is not True:
                raise UnsupportedError(
                    f"{where} of {each.module_path} may store blocks under keys that do not say which factor set rotated "
                    f"them. If its keys hold each request's block hashes or cache_salt, set {VOUCHED} to true in its "
                    f"kv_connector_extra_config; vLLM's own that are allowed: {', '.join(ALLOWED)}"
                )
            continue
        connector = BY_NAME.get(each.name)
        if connector is None:
            raise UnsupportedError(f"{where} is not one of vLLM's connectors; allowed: {', '.join(ALLOWED)}")
        if connector.refusal is not None:
            raise UnsupportedError(f"{where}: {connector.refusal}; allowed: {', '.join(ALLOWED)}")
        if connector.module is not None:
            raise UnsupportedError(
                f"{where} is not the ladder's own, of {connector.module}; name it in kv_transfer_config.kv_connector"
            )


def _check_options(chosen: Configured) -> None:
    where, connector = f"{chosen.where}.kv_connector_extra_config", BY_NAME[chosen.name]
    for field, value, reason in connector.refused:
        if field in chosen.extra_config and bool(chosen.extra_config[field]) is value:
            raise UnsupportedError(f"{where}.{field}: {chosen.extra_config[field]!r}: {reason}")
    for field, value, reason in connector.fixed:
        if chosen.extra_config.get(field, value) != value:
            raise UnsupportedError(f"{where}.{field}: {chosen.extra_config[field]!r}: {reason}; allowed: {value!r}")


def _check_lmcache_version(where: str) -> None:
    try:
        installed = version("lmcache")
    except PackageNotFoundError:
        installed = "not installed"
    if installed not in LMCACHE_VERIFIED:
        raise UnsupportedError(f"{where}: lmcache is {installed}; allowed: {', '.join(LMCACHE_VERIFIED)}")


def check_connected_engine(vllm_config: Any) -> None:
    """Refuse a resolved engine config whose connector may mix up blocks; called in every engine and worker process.

    Raises:
        UnsupportedError: with the field, its value and the reason.
    """
    check_connector(vllm_config.kv_transfer_config, attached=True)
    if not any(each.name == LMCACHE_MP for each in configured(vllm_config.kv_transfer_config)):
        return
    if vllm_config.model_config.enable_prompt_embeds:
        raise UnsupportedError(
            "enable_prompt_embeds: True: LMCache keys by tokens, and such prompts have none; allowed: False"
        )
    events = vllm_config.kv_events_config
    if events is not None and events.enable_kv_cache_events:
        raise UnsupportedError(
            "kv_events_config.enable_kv_cache_events: True: LMCache's events do not name the factor set; allowed: False"
        )


def forget(connector: Any, request: Any, *, keys: bool) -> None:
    """Reset a connector's state for a request whose blocks are gone, so that its next step sends all its block ids again.

    Connectors are notified when a request is new and when it finishes, but not in between. Some keep the block ids and keys
    of a running request and append to them.
    ``keys``: its blocks were also rehashed, in another factor set.
    """
    # Matched by name, to avoid importing connectors that the engine does not use; a user's class may subclass one.
    names = {each.__name__ for each in type(connector).__mro__}
    if MULTI in names:
        for each in connector.sub_connectors:
            forget(each, request, keys=keys)
    if OFFLOADING in names:
        # Resetting the offloading cache drops the state of finished requests.
        state = connector.scheduler._req_status.get(request.request_id)
        for group in state.group_states if state is not None else ():
            # Upstream appends to both lists: the next step would add all block ids again, and new hashes after the old ones.
            group.block_ids.clear()
            if keys:
                group.offload_keys.clear()
                group.next_stored_chunk_idx = 0
