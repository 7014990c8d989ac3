"""The parts beside the switch. The switch imports them by name only, so each can be left out.

A part is a module with any of these functions:

- ``check(engine_args, hf_config)``: refuse an engine by its arguments and the model's text config;
- ``attach(engine_args, settings)``: choose a scheduler or worker class, before the engine's config is made;
- ``prepare(vllm_config)``: check and patch an engine or worker process, before the switch patches it;
- ``model_loaded(worker)``: look at a worker whose model is loaded;
- ``warm_up(worker)``: compile what the part will run, on a GPU's worker before upstream captures graphs and then watches for
  kernels that are compiled while serving.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

# In the order in which they are called: the guard compares upstream's symbols before anything is patched.
PARTS = {
    "guard": "ropeswitch.model_patches.guard.part",
    "cpu": "ropeswitch.model_patches.cpu.part",
    "triton": "ropeswitch.model_patches.triton.part",
    "scheduling": "ropeswitch.model_patches.scheduling.part",
    "serving": "ropeswitch.model_patches.serving.part",
}

# The one that plain vLLM is not given unless it is asked for: the engine's side of `ropeswitch serve`.
SERVER = "serving"


def call(hook: str, parts: Sequence[str], *arguments: Any) -> None:
    """Call one of the module's hooks in each of ``parts`` (names in :data:`PARTS`) that has it."""
    for name, module in PARTS.items():
        if name in parts and (function := getattr(import_module(module), hook, None)) is not None:
            function(*arguments)


def ask(part: str, function: str, *arguments: Any) -> Any:
    """What a function of one part returns."""
    return getattr(import_module(PARTS[part]), function)(*arguments)
