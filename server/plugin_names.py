"""Which plugins vLLM loads.

vLLM loads an endpoint plugin only if ``VLLM_PLUGINS`` names it, and once that is set, every plugin of every kind that
it does not name is left out. So the list is written in full: what vLLM would have loaded by itself, and ours.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

PLUGIN = "ropeswitch"
VARIABLE = "VLLM_PLUGINS"


def plugin_names(environment: Mapping[str, str]) -> str:
    """The value of ``VLLM_PLUGINS`` that adds our plugins to the user's own choice, or to all where none was made."""
    chosen = environment.get(VARIABLE)
    if chosen is not None:
        names = set(chosen.split(","))
    else:
        # Without a choice vLLM loads every group but the endpoint plugins, which add routes to the server.
        groups = {group for group in entry_points().groups if group.startswith("vllm.")} - {"vllm.endpoint_plugins"}
        names = {entry.name for group in groups for entry in entry_points(group=group)}
    return ",".join(sorted({*names, PLUGIN} - {""}))
