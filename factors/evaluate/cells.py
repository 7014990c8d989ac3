"""Finished parts of an evaluation, kept in a file as they come so that an interrupted one goes on."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.factor_set import FactorError

FORMAT = "ropeswitch-evaluation-cells/1"


@dataclass(frozen=True)
class Cell:
    """What is measured at once: one task at one length with one set, from one seed (and at one depth)."""

    task: str
    length: int
    set_name: str
    seed: int
    depth: float | None = None

    def __str__(self) -> str:
        depth = "" if self.depth is None else f", depth {self.depth:g}"
        return f"{self.task}, length {self.length}, set {self.set_name}, seed {self.seed}{depth}"


class Cells:
    """A file of JSON lines: first the settings that all cells share, then one line for each finished cell."""

    def __init__(self, path: Path, settings: dict[str, Any], meanings: dict[str, Any]) -> None:
        """Open or make the file.

        Args:
            path: Where.
            settings: What every cell depends on.
            meanings: What each set's name stands for.

        Raises:
            FactorError: when it holds cells of other settings, or of another set under a name, or is none of ours.
        """
        self.path = path
        self._digests = {name: _digest(meaning) for name, meaning in meanings.items()}
        self.found: dict[Cell, Any] = {}
        head = {"format": FORMAT, "settings": settings}
        lines = self._lines()
        if not lines:
            self._append(head)
            return
        before = _object(lines[0], path, 1)
        if before.get("format") != FORMAT:
            raise FactorError(f"{str(path)!r}: is no file of evaluation cells; remove it or give another -o")
        old, new = before["settings"], json.loads(json.dumps(settings))
        if changed := sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)):
            raise FactorError(
                f"{str(path)!r}: holds an evaluation with other settings ({', '.join(changed)}); give another -o, or remove "
                "it to begin anew"
            )
        for number, line in enumerate(lines[1:], 2):
            self._read(_object(line, path, number), number)

    def keep(self, cell: Cell, result: Any) -> None:
        """Add a finished cell, whole or not at all.

        Raises:
            FactorError: when it cannot be written.
        """
        self._append({**asdict(cell), "set_digest": self._digests[cell.set_name], "result": result})
        self.found[cell] = result

    def _read(self, line: dict[str, Any], number: int) -> None:
        try:
            digest, result = line.pop("set_digest"), line.pop("result")
            cell = Cell(**line)
        except (KeyError, TypeError) as error:
            raise FactorError(
                f"{str(self.path)!r}, line {number}: is no cell; remove the file to begin anew"
            ) from error
        if digest != self._digests.get(cell.set_name, digest):
            raise FactorError(
                f"{str(self.path)!r}: was made with another set of the name {cell.set_name!r}; give another -o, or the set "
                "another name"
            )
        self.found[cell] = result

    def _lines(self) -> list[str]:
        try:
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise FactorError(f"{str(self.path)!r}: cannot be read: {error}") from error
        # What a process was killed at is no whole line.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._cut(len(whole.encode()))
        return whole.splitlines()

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
        if size:
            os.truncate(self.path, size)
        else:
            self.path.unlink()


def _object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FactorError(f"{str(path)!r}, line {number}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FactorError(f"{str(path)!r}, line {number}: must be an object")
    return content


def _digest(meaning: Any) -> str:
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]
