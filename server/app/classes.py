"""Gives an API server process our subclasses of vLLM's classes, before it makes its engine client."""

from typing import Any

from ropeswitch.model_patches.switch.engine.patching import replace


def use_our_classes() -> None:
    """Have vLLM make a :class:`RopeClient` and a :class:`WatchedOutputs`, under the names by which it looks them up."""
    replace("vllm.v1.engine.async_llm.AsyncLLM", _client)
    replace("vllm.v1.engine.async_llm.OutputProcessor", _outputs)


# Imported here: vLLM's general plugins run in every process, and only API servers need these modules.
def _client(_: Any) -> Any:
    from ropeswitch.server.app.engine_client import RopeClient

    return RopeClient


def _outputs(_: Any) -> Any:
    from ropeswitch.server.metrics.outputs import WatchedOutputs

    return WatchedOutputs
