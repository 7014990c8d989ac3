"""Stores finished cells of an evaluation in a file, so that an interrupted evaluation resumes."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.evaluate.passkey import PASSKEY
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import object_from_json
from ropeswitch.factors.numbers import is_number, is_whole

TASKS = (PERPLEXITY, PASSKEY)
# Beginning of every line.
BEGINNING = '{"task": "'
FIELDS = {"task", "length", "set_name", "seed", "digest", "result"}


@dataclass(frozen=True)
class Cell:
    """One unit of measurement: a task at one length with one set, from one seed."""

    task: str
    length: int
    set_name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}, length {self.length}, set {self.set_name}, seed {self.seed}"


class Cells:
    """A JSON Lines file with a finished cell per line, and the digest of all settings that it depends on."""

    def __init__(self, path: Path, digests: Mapping[tuple[str, str], str]) -> None:
        """Open the file, which need not exist.

        ``digests`` are those of the settings of new cells, by task and name of the set; see ``Evaluation.digests``.

        Raises FactorError, naming the line that is no cell, or a cell of one of these tasks and sets with other settings.
        """
        self.path, self._digests = path, digests
        self.found: dict[Cell, Any] = {}
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise FactorError(f"{str(path)!r}: cannot be read: {error}") from error
        # A killed process leaves a partial last line.
        whole = text[: text.rfind("\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._read(object_from_json(line))
            except FactorError as error:
                raise FactorError(
                    f"{str(path)!r}, line {number}: {error}; use another -o, or remove the file"
                ) from error
        partial = text[len(whole) :]
        if not partial.startswith(BEGINNING) and not BEGINNING.startswith(partial):
            raise FactorError(f"{str(path)!r}: is not a file of evaluation cells; use another -o, or remove the file")
        self._size = len(whole.encode())

    def keep(self, cell: Cell, result: Any) -> None:
        """Append a finished cell. If that fails, earlier cells stay whole, and a partial line is cut by the next one."""
        line = {**asdict(cell), "digest": self._digests[cell.task, cell.set_name], "result": result}
        content = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            with self.path.open("ab") as stream:
                stream.truncate(self._size)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise FactorError(f"{str(self.path)!r}: cannot be written: {error.strerror or error}") from error
        self._size += len(content)
        self.found[cell] = result

    def _read(self, line: dict[str, Any]) -> None:
        results = line.get("result")
        valid = line.keys() == FIELDS and line["task"] in TASKS and isinstance(line["set_name"], str)
        valid = valid and is_whole(line["length"]) and is_whole(line["seed"], 0) and isinstance(results, list)
        if not valid or not results or not all(_is_result(line["task"], each) for each in results):
            raise FactorError("not a finished cell of an evaluation")
        digest = line["digest"]
        cell = Cell(line["task"], line["length"], line["set_name"], line["seed"])
        if digest != self._digests.get((cell.task, cell.set_name), digest):
            raise FactorError(f"{cell} was measured with another model, text, setting or set of that name")
        self.found[cell] = results


def _is_result(task: str, values: Any) -> bool:
    if not isinstance(values, dict):
        return False
    if task == PERPLEXITY:
        return is_number(values.get("nll")) and is_whole(values.get("tokens"))
    return is_number(values.get("score")) and 0 <= values["score"] <= 1
