"""The table of KV connectors names all of vLLM's, and every other one is refused with the reason."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.kv import connectors
from ropeswitch.model_patches.switch.kv.connectors import (
    BY_NAME,
    CONNECTORS,
    MULTI,
    attach,
    check_connected_engine,
    check_connector,
)


def config(name: str | None, **changes: Any) -> KVTransferConfig:
    return KVTransferConfig(**({"kv_connector": name, "kv_role": "kv_both"} | changes))


def of(*children: dict[str, Any]) -> KVTransferConfig:
    return config(MULTI, kv_connector_extra_config={"connectors": list(children)})


CHILD = {"kv_role": "kv_both"}


def test_the_table_is_vllms() -> None:
    assert set(BY_NAME) == set(KVConnectorFactory._registry) and len(BY_NAME) == len(CONNECTORS)
    for connector in CONNECTORS:
        assert (connector.keys is None) != (connector.refusal is None)


@pytest.fixture(autouse=True)
def lmcache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verified LMCache, which the engine's environment lacks."""
    monkeypatch.setattr(connectors, "version", lambda name: connectors.LMCACHE_VERIFIED[0])


@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda connector: connector.name)
def test_each_is_allowed_or_refused(connector: Any) -> None:
    configs = [config(connector.name), of({"kv_connector": connector.name} | CHILD)]
    for each in configs if connector.name != MULTI else []:
        if connector.refusal is None:
            check_connector(each)
            continue
        with pytest.raises(UnsupportedError, match=f"{connector.name}': {connector.refusal}; allowed: Offload"):
            check_connector(each)


def with_options(name: str, **options: Any) -> KVTransferConfig:
    return config(name, kv_connector_extra_config=options)


OFFLOADING, LMCACHE = {"kv_connector": "OffloadingConnector"} | CHILD, {"kv_connector": "LMCacheMPConnector"} | CHILD
REFUSED = [
    (config("Nobodys"), "kv_transfer_config.kv_connector: 'Nobodys'"),
    (KVTransferConfig(), "kv_transfer_config.kv_connector: None"),
    (of(), r"kv_connector_extra_config.connectors: \[\]"),
    (config(MULTI), "kv_connector_extra_config.connectors: None"),
    (of(OFFLOADING, {"kv_connector": "Nobodys"} | CHILD), r"connectors\[1\].kv_connector: 'Nobodys'"),
    (of({"kv_connector": MULTI, "kv_connector_extra_config": 3}), r"connectors\[0\].kv_connector_extra_config: 3"),
    (config("Mine", kv_connector_module_path="my.module"), "'Mine' of my.module .* set rope_set_in_keys to true"),
    # A name of vLLM's does not lend its row to another module.
    (config("OffloadingConnector", kv_connector_module_path="my.module"), r"'OffloadingConnector' of my\.module"),
    *((with_options("NixlConnector", bidirectional_kv_xfer=on), "bidirectional_kv_xfer: ") for on in (True, 1)),
    *((with_options("NixlConnector", enforce_handshake_compat=off), "handshake_compat: ") for off in (False, 0)),
    (of(LMCACHE | {"kv_connector_extra_config": {"lmcache.mp.lazy_offload": True}}), r"\[0\].*lazy_offload: True"),
    *((with_options("LMCacheMPConnector", **{"lmcache.mp.mp_transfer_mode": mode}), f"mp_transfer_mode: '{mode}'")
      for mode in ("lmcache_driven", "auto")),
]  # fmt: skip


@pytest.mark.parametrize(("chosen", "message"), REFUSED)
def test_refusals(chosen: KVTransferConfig, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_connector(chosen)


def test_a_connector_that_its_user_vouches_for() -> None:
    vouched = {"kv_connector_module_path": "my.module", "kv_connector_extra_config": {"rope_set_in_keys": True}}
    check_connector(config("Mine", **vouched))
    check_connector(of({"kv_connector": "Mine"} | CHILD | vouched))
    check_connector(with_options("NixlConnector", bidirectional_kv_xfer=False, enforce_handshake_compat=True))


def test_nixl_is_loaded_from_our_module() -> None:
    for name in ("NixlConnector", "NixlPullConnector"):
        chosen = config(name)
        with pytest.raises(UnsupportedError, match=f"'{name}' is not the ladder's own"):
            check_connector(chosen, attached=True)
        for _ in range(2):
            check_connector(chosen)
            attach(chosen)
        check_connector(chosen, attached=True)
        assert KVConnectorFactory.get_connector_class(chosen).__module__ == BY_NAME[name].module
        child = of({"kv_connector": name} | CHILD)
        attach(child)
        check_connector(child, attached=True)
    attach(None)


def test_lmcache_lets_the_engine_copy() -> None:
    """Its own default for GPUs has the server copy."""
    mode = {"lmcache.mp.mp_transfer_mode": "engine_driven"}
    alone, child = config("LMCacheMPConnector"), of({"kv_connector": "LMCacheMPConnector"})
    attach(alone), attach(child)
    assert alone.kv_connector_extra_config == mode
    assert child.kv_connector_extra_config["connectors"][0]["kv_connector_extra_config"] == mode
    check_connector(child, attached=True)


def test_versions_of_lmcache(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, installed in (
        (Mock(return_value="0.5.7"), "0.5.7"),
        (Mock(side_effect=PackageNotFoundError), "not in"),
    ):
        monkeypatch.setattr(connectors, "version", version)
        with pytest.raises(UnsupportedError, match=f"lmcache is {installed}.*; allowed: 0.5.6"):
            check_connector(config("LMCacheMPConnector"))


def test_engines_that_lmcache_would_mix_up() -> None:
    for chosen in (config("LMCacheMPConnector"), of(LMCACHE)):
        attach(chosen)
        model, events = SimpleNamespace(enable_prompt_embeds=False), SimpleNamespace(enable_kv_cache_events=False)
        engine = SimpleNamespace(kv_transfer_config=chosen, model_config=model, kv_events_config=events)
        check_connected_engine(engine)
        for owner, field in ((model, "enable_prompt_embeds"), (events, "enable_kv_cache_events")):
            setattr(owner, field, True)
            with pytest.raises(UnsupportedError, match=f"{field}: "):
                check_connected_engine(engine)
            setattr(owner, field, False)


def test_the_documented_table_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kv-stores.md").read_text(encoding="utf-8")
    rows = (f"| `{each.name}` | {each.keys or f'refused: {each.refusal}'} |\n" for each in CONNECTORS)
    assert "| connector | keys |\n| --- | --- |\n" + "".join(rows) + "\n" in page
