"""The part ``serving``: the engine's side of ``ropeswitch serve``."""

from typing import Any

from ropeswitch.model_patches.serving.prefill_progress import reporting_progress
from ropeswitch.model_patches.switch.engine.patching import replace


def prepare(vllm_config: Any) -> None:
    """Patch an engine or worker process."""
    replace("vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size", reporting_progress)
