"""Executed in a forked server: NIXL's thread sleeps between polls, where it would take a core from the other server."""

from typing import Any

from nixl_cu12 import _bindings

MICROSECONDS = 1000
upstream = _bindings.nixlAgent


def agent(name: str, config: Any) -> Any:
    config.pthrDelay = MICROSECONDS
    return upstream(name, config)


_bindings.nixlAgent = agent
