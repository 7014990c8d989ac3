"""Stores finished cells of an evaluation in a file, so that an interrupted evaluation resumes."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.evaluate.passkey import PASSKEY
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import is_number
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.strict_json import object_from_json

FORMAT = "ropeswitch-evaluation-cells/1"
# Beginning of every cells file.
BEGINNING = f'{{"format": "{FORMAT}"'
TASKS = (PERPLEXITY, PASSKEY)


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
    """A JSON Lines file: the settings that all cells share, then one line per finished cell.

    Settings needed only by tasks that were added later have a line of their own.
    """

    def __init__(self, path: Path, settings: dict[str, Any], meanings: dict[str, Any]) -> None:
        """Open or create the file.

        Args:
            path: Path of the file.
            settings: Settings that new cells depend on, by name; only settings in both the file and here are compared.
            meanings: Content of each set, by name.

        Raises:
            FactorError: when the file has cells of other settings, or of another set with the same name, or is not a cells
                file; names the line, if one is invalid.
        """
        self.path = path
        self._digests = {name: _digest(meaning) for name, meaning in meanings.items()}
        self.found: dict[Cell, Any] = {}
        new = json.loads(json.dumps(settings))
        lines = self._lines()
        if not lines:
            self._append({"format": FORMAT, "settings": new})
            return
        head = self._object(lines[0], 1)
        if head.get("format") != FORMAT:
            raise FactorError(self._stranger)
        old = self._settings(head, 1)
        for number, line in enumerate(lines[1:], 2):
            content = self._object(line, number)
            if content.keys() == {"settings"}:
                old |= self._settings(content, number)
            else:
                self._read(content, number)
        if changed := sorted(key for key in old.keys() & new.keys() if old[key] != new[key]):
            raise FactorError(
                f"{str(path)!r}: contains an evaluation with other settings ({', '.join(changed)}); use another -o, or "
                "remove the file to start over"
            )
        if more := {key: value for key, value in new.items() if key not in old}:
            self._append({"settings": more})

    def keep(self, cell: Cell, result: Any) -> None:
        """Append a finished cell atomically.

        Raises:
            FactorError: when it cannot be written.
        """
        self._append({**asdict(cell), "set_digest": self._digests[cell.set_name], "result": result})
        self.found[cell] = result

    def _read(self, line: dict[str, Any], number: int) -> None:
        # Cells of earlier versions have a depth, null for today's tasks.
        if line.get("depth") is None:
            line.pop("depth", None)
        try:
            _check(line)
        except FactorError as error:
            raise FactorError(
                f"{str(self.path)!r}, line {number}: not a valid cell: {error}; remove the file to start over"
            ) from error
        digest, result = line.pop("set_digest"), line.pop("result")
        cell = Cell(**line)
        if digest != self._digests.get(cell.set_name, digest):
            raise FactorError(
                f"{str(self.path)!r}: was made with a different set named {cell.set_name!r}; use another -o, or rename "
                "the set"
            )
        self.found[cell] = result

    def _settings(self, content: dict[str, Any], number: int) -> dict[str, Any]:
        found = content.get("settings")
        if not isinstance(found, dict):
            raise FactorError(f"{str(self.path)!r}, line {number}: settings: {quoted(found)} must be an object")
        return found

    def _object(self, line: str, number: int) -> dict[str, Any]:
        try:
            return object_from_json(line)
        except FactorError as error:
            raise FactorError(f"{str(self.path)!r}, line {number}: {error}") from error

    @property
    def _stranger(self) -> str:
        return f"{str(self.path)!r}: is not a file of evaluation cells; remove it, or use another -o"

    def _lines(self) -> list[str]:
        try:
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise FactorError(f"{str(self.path)!r}: cannot be read: {error}") from error
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            # A killed process leaves a partial last line. Another program's file is never truncated.
            if not text.startswith(BEGINNING) and not BEGINNING.startswith(text):
                raise FactorError(self._stranger)
            self._cut(len(whole.encode()))
        return whole.split("\n")[:-1]

    def _append(self, content: Any) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(content, allow_nan=False) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            if self.path.exists():
                self._cut(size)
            raise FactorError(f"{str(self.path)!r}: cannot be written: {error.strerror or error}") from error

    def _cut(self, size: int) -> None:
        try:
            if size:
                os.truncate(self.path, size)
            else:
                self.path.unlink()
        except OSError as error:
            raise FactorError(f"{str(self.path)!r}: cannot be written: {error.strerror or error}") from error


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Fields of a cell's line: a check of the value, and what it must be.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda value: value in TASKS, f"one of {', '.join(TASKS)}"),
    "length": (_is_whole, "a whole number"),
    "set_name": (lambda value: isinstance(value, str), "a string"),
    "seed": (_is_whole, "a whole number"),
    "set_digest": (lambda value: isinstance(value, str), "a string"),
    "result": (lambda value: isinstance(value, list) and bool(value), "a list of at least one object"),
}


def _check(line: dict[str, Any]) -> None:
    """Refuse a line that is not a valid cell.

    Raises:
        FactorError: naming the field, its value and what it must be.
    """
    for name, (check, allowed) in FIELDS.items():
        if name not in line:
            raise FactorError(f"{name}: missing")
        if not check(line[name]):
            raise FactorError(f"{name}: {quoted(line[name])} must be {allowed}")
    if unknown := sorted(set(line) - set(FIELDS)):
        raise FactorError(f"{quoted(unknown[0])}: unknown field; allowed: {', '.join(FIELDS)}")
    for each in line["result"]:
        values = each if isinstance(each, dict) else {}
        if line["task"] == PERPLEXITY:
            is_valid = is_number(values.get("nll")) and _is_whole(values.get("tokens")) and values["tokens"] >= 1
            allowed = "an object with nll, a number, and tokens, a whole number of at least 1"
        else:
            is_valid = is_number(values.get("score")) and 0 <= values["score"] <= 1
            allowed = "an object with score, a number from 0 to 1"
        if not is_valid:
            raise FactorError(f"result: {quoted(each)} must be {allowed}")


def _digest(meaning: Any) -> str:
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]
