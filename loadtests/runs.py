"""Runs of a benchmark, stored line by line so that an interrupted command can resume."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ropeswitch.factors.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Run = TypeVar("Run", bound="DataclassInstance")


class Runs(Generic[Run]):
    """The runs in a JSON Lines file made with the given options; other runs in it are left alone.

    Args:
        path: The file, which need not exist.
        kind: Dataclass of a run.
        options: Options of the command that change its runs.

    Raises:
        InputError: if a line is not a run, for example because a crash cut it short.
    """

    def __init__(self, path: Path, kind: type[Run], options: dict[str, Any]) -> None:
        self._path, self._options = path, options
        self.found: list[Run] = []
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
            try:
                each = json.loads(line)
                run = kind(**each["run"])
                if each["options"] == options:
                    self.found.append(run)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}, line {number}: not a run ({error!r}); remove the line") from None

    def has(self, **fields: object) -> bool:
        """Return whether a run has these values in these fields."""
        return any(all(getattr(run, name) == value for name, value in fields.items()) for run in self.found)

    def add(self, run: Run) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"options": self._options, "run": asdict(run)}) + "\n")
        self.found.append(run)
