"""The key that turns the switch on, and whether vLLM loads the plugin that reads it; imports the standard library only."""

from collections.abc import Mapping

KEY = "ropeswitch"
"""The field of ``additional_config``."""
NAME = "ropeswitch"
"""The entry point's name, which ``VLLM_PLUGINS`` must list if it is set."""


def left_out(environment: Mapping[str, str]) -> str | None:
    """Return why vLLM will not load this plugin, so that the key would have no effect; None if it will."""
    chosen = environment.get("VLLM_PLUGINS")
    if chosen is None or NAME in (name.strip() for name in chosen.split(",")):
        return None
    return (
        f"VLLM_PLUGINS: {chosen!r} leaves out {NAME!r}, which rotates requests by length; add it, or unset the variable"
    )
