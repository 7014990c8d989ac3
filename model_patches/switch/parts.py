"""The parts next to the switch. The switch imports them only by name, so each can be left out.

A part is a module with any of these functions:

- ``attach(engine_args, settings)``: choose a scheduler or worker class before the engine's config is built;
- ``prepare(vllm_config)``: check and patch an engine or worker process before the switch patches it;
- ``model_loaded(worker)``: check a worker whose model is loaded;
- ``warm_up(worker)``: compile the part's kernels on a GPU worker, before upstream captures graphs and then watches for
  kernels compiled while serving.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

# In call order: the guard compares upstream's symbols before anything is patched.
PARTS = {
    "guard": "ropeswitch.model_patches.guard.part",
    "cpu": "ropeswitch.model_patches.cpu.part",
    "triton": "ropeswitch.model_patches.triton.part",
    "scheduling": "ropeswitch.model_patches.scheduling.part",
}


def call(hook: str, parts: Sequence[str], *arguments: Any) -> None:
    """Call a hook in each of ``parts`` (names in :data:`PARTS`) that defines it."""
    for name, module in PARTS.items():
        if name in parts and (function := getattr(import_module(module), hook, None)) is not None:
            function(*arguments)


def ask(part: str, function: str, *arguments: Any) -> Any:
    """Call a function of one part and return its result."""
    return getattr(import_module(PARTS[part]), function)(*arguments)
