"""On ``PYTHONPATH``: a server that rotates wrongly while the file that ``ROPESWITCH_TEST_BREAK`` names says how.

Executed in a forked server (``tests/server/forked.py``), whose further processes are forked from it.
"""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def broken(how: str) -> bool:
    return Path(os.environ["ROPESWITCH_TEST_BREAK"]).read_text() == how


def everywhere(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Give the other function to all modules that have imported this one."""
    for module in [each for each in sys.modules.values() if vars(each).get(function.__name__) is function]:
        setattr(module, function.__name__, other)


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
    everywhere(salt_of, lambda key, salt: salt_of("0" if broken("keys") else key, salt))

    def late(ladder: Any, num_tokens: int, **kwargs: Any) -> Any:
        return place(ladder, num_tokens - broken("decision"), **kwargs)

    everywhere(place, late)


def scheduler(module: Any) -> None:
    """A request that outgrows its set stays in it."""
    end = module.LadderScheduler._end
    module.LadderScheduler._end = lambda self, request: float("inf") if broken("crossing") else end(self, request)


for change, name in ((rows, "rows.step_rows"), (placement, "placement"), (scheduler, "engine.scheduler")):
    change(importlib.import_module(f"ropeswitch.model_patches.switch.{name}"))
