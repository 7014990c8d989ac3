"""On ``PYTHONPATH``: a server that rotates wrongly while the file that ``ROPESWITCH_TEST_BREAK`` names says how.

A module of ours is changed when it has been loaded, in whichever of the server's processes loads it.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

SWITCH = "ropeswitch.model_patches.switch"
# On the path of started servers a module of this name makes them sleep where vLLM spins; this one is before it.
os.sched_yield = lambda: __import__("time").sleep(1e-4)


def broken(how: str) -> bool:
    return Path(os.environ["ROPESWITCH_TEST_BREAK"]).read_text() == how


def rows(module: Any) -> None:
    """Tokens of answers are rotated with the first set."""
    upstream = module.RotationRows.fill

    def fill(self: Any, positions: Any, sets: Any, starts: Any) -> None:
        decodes = starts[1:] - starts[:-1] == 1
        upstream(self, positions, sets.masked_fill(decodes, 0) if broken("rows") else sets, starts)

    module.RotationRows.fill = fill


def placement(module: Any) -> None:
    """Sets share cached blocks, or a set serves one token more than it may."""
    salt_of, place = module.salt_of, module.place
    module.salt_of = lambda key, salt: salt_of("0" if broken("keys") else key, salt)

    def late(ladder: Any, num_tokens: int, **kwargs: Any) -> Any:
        return place(ladder, num_tokens - broken("decision"), **kwargs)

    module.place = late


def scheduler(module: Any) -> None:
    """A request that outgrows its set stays in it."""
    end = module.LadderScheduler._end
    module.LadderScheduler._end = lambda self, request: float("inf") if broken("crossing") else end(self, request)


BREAKS: dict[str, Callable[[Any], None]] = {
    f"{SWITCH}.rows.step_rows": rows, f"{SWITCH}.placement": placement, f"{SWITCH}.engine.scheduler": scheduler,
}  # fmt: skip


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules as Python does, and has them changed when they are loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in BREAKS:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def load_and_break(module: ModuleType) -> None:
            load(module)
            BREAKS[name](module)

        spec.loader.exec_module = load_and_break
        return spec


sys.meta_path.insert(0, Finder())
