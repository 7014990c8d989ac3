"""The scheduling benchmark's measurements, stored line by line so that an interrupted run can resume."""

import json
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.scheduling.settings import Setting


class Measurements:
    """The measurements in a JSON Lines file made with the given options; others in it are left alone.

    Args:
        path: The file, which need not exist.
        options: Options of all measurements of a run: the prompt's length in tokens.

    Raises:
        ValueError: if a line of the file is not a measurement, for example because a crash cut it short.
    """

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self.path = path
        self._options = options
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [self._parsed(number, line) for number, line in enumerate(lines, 1)]
        self.records = [record for record in found if record["options"] == options]

    def has(self, phase: str, setting: Setting, turn: int) -> bool:
        """Whether a setting's round of a phase was measured."""
        key = self._key(phase, setting, turn)
        return any(all(record[name] == value for name, value in key.items()) for record in self.records)

    def add(self, phase: str, setting: Setting, turn: int, result: dict[str, Any]) -> None:
        record = self._key(phase, setting, turn) | {"options": self._options, "result": result}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)

    def _parsed(self, number: int, line: str) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.path}, line {number}: not a measurement ({error}); remove the line") from None
        return dict(record)

    @staticmethod
    def _key(phase: str, setting: Setting, turn: int) -> dict[str, Any]:
        return {
            "phase": phase,
            "setting": setting.name,
            "ours": setting.ours,
            "target": setting.target,
            "arguments": setting.arguments,
            "round": turn,
        }
