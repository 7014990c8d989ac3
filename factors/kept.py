"""Finished work as JSON Lines beside the output, so that a stopped command resumes where it was."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.files import object_from_json
from ropeswitch.factors.quoted import quoted


class Kept:
    """A file with a finished piece of work per line; a piece that is killed while it is written is lost alone.

    Args:
        path: The file, which need not exist.
        task: What all pieces depend on, as plain JSON values; the first line. Everything else belongs into a piece's key.

    Raises:
        FactorError: naming the file, when it cannot be read or written, is another's, or was made for another task.
    """

    def __init__(self, path: Path, task: Mapping[str, Any]) -> None:
        self.path, task = path, json.loads(json.dumps(task))
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            lines = [object_from_json(line) for line in whole.splitlines()]
            self._found = {json.dumps(line["of"]): line["found"] for line in lines[1:]}
        except OSError as error:
            raise FactorError(f"{str(path)!r}: cannot be read: {error.strerror or error}") from error
        except (UnicodeDecodeError, FactorError, KeyError) as error:
            raise FactorError(f"{str(path)!r}: holds no finished work of this command ({error}); remove it") from error
        if text and (not lines or lines[0].keys() != task.keys()):
            raise FactorError(f"{str(path)!r}: holds no finished work of this command; remove it")
        for name, here in sorted(task.items()) if lines else ():
            if (there := lines[0][name]) != here:
                raise FactorError(
                    f"{str(path)!r}: {name}: it was made with {quoted(there)}, but this run has {quoted(here)}; remove the "
                    "file to start over, or use another output"
                )
        # Truncate an incomplete last line at the first write; nothing else, as another run may append to the file too.
        self._size = len(whole.encode()) if whole != text else None
        if not lines:
            self._write(task)

    def __contains__(self, of: Any) -> bool:
        return json.dumps(of) in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, of: Any, work: Callable[[], Any]) -> Any:
        """Return a piece's result by its key, plain JSON values as the key; ``work`` makes it if it is not there yet."""
        if of not in self:
            found = work()
            self._write({"of": of, "found": found})
            self._found[json.dumps(of)] = found
        return self._found[json.dumps(of)]

    def _write(self, line: Mapping[str, Any]) -> None:
        content = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            with self.path.open("ab") as stream:
                if self._size is not None:
                    stream.truncate(self._size)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise FactorError(f"{str(self.path)!r}: cannot be written: {error.strerror or error}") from error
        self._size = None


def digest(values: Any) -> str:
    """Return a short digest of plain JSON values, for a key of :class:`Kept`."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
