"""Chooses the plugins that vLLM loads.

vLLM loads an endpoint plugin only if ``VLLM_PLUGINS`` names it. Once that variable is set, it must name plugins of every
kind, so the list is complete: every plugin that vLLM would load by default, and ours.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.switch.config.key import NAME, left_out

# The switch and the server's endpoints; the hook that reports refusals of child processes.
PLUGIN, REFUSALS = NAME, "ropeswitch_refusals"
VARIABLE = "VLLM_PLUGINS"


def plugin_names(environment: Mapping[str, str]) -> str:
    """Return the ``VLLM_PLUGINS`` that adds our plugins to the user's choice, or to all plugins if it is unset.

    Raises:
        UsageError: when the user's choice excludes the switch.
    """
    chosen = environment.get(VARIABLE)
    if chosen:
        if (reason := left_out(environment)) is not None:
            raise UsageError(reason)
        names = {name.strip() for name in chosen.split(",")}
    elif chosen is not None:
        names = set()
    else:
        # By default vLLM loads every group but the endpoint plugins, which add routes to the server.
        groups = {group for group in entry_points().groups if group.startswith("vllm.")} - {"vllm.endpoint_plugins"}
        names = {entry.name for group in groups for entry in entry_points(group=group)}
    return ",".join(sorted({*names, PLUGIN, REFUSALS} - {""}))
