"""Refuses unverified LMCache versions, and engine settings under which LMCache's keys or events would be ambiguous."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ropeswitch.model_patches.switch.config.settings import UnsupportedError

VERIFIED = ("0.5.6",)


def check_lmcache(where: str, name: str) -> None:
    """Refuse an LMCache version that has not been verified.

    Args:
        where: The config field, for messages.
        name: The connector's name.

    Raises:
        UnsupportedError: with the field, its value and the reason.
    """
    try:
        installed = version("lmcache")
    except PackageNotFoundError:
        installed = "not installed"
    if installed not in VERIFIED:
        raise UnsupportedError(
            f"{where}.kv_connector: {name!r}: lmcache is {installed}; allowed: {', '.join(VERIFIED)}"
        )


def check_lmcache_engine(vllm_config: Any) -> None:
    """Refuse an engine for which LMCache's keys or events would not distinguish requests or their factor sets.

    Args:
        vllm_config: ``vllm.config.VllmConfig``.

    Raises:
        UnsupportedError: with the field and its value.
    """
    if vllm_config.model_config.enable_prompt_embeds:
        raise UnsupportedError(
            "enable_prompt_embeds: True: LMCache keys by tokens, and such prompts have none; allowed: False"
        )
    events = vllm_config.kv_events_config
    if events is not None and events.enable_kv_cache_events:
        raise UnsupportedError(
            "kv_events_config.enable_kv_cache_events: True: LMCache's events do not name the factor set; allowed: False"
        )
