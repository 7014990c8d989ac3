"""Reads texts to evaluate on, from ``*.txt`` and ``*.jsonl`` files."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.strict_json import read_text


@dataclass(frozen=True)
class Document:
    """A text and its origin."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents, with their tokens cached on first use."""

    source: str
    documents: tuple[Document, ...]
    _ids: dict[str, list[int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(cls, path: str | Path) -> "Corpus":
        """Read one file, or a folder (not its subfolders) sorted by file name. Empty texts are skipped.

        Raises:
            FactorError: naming the file and line that cannot be read, or when there is no text.
        """
        root = Path(path)
        files = (
            sorted(each for each in root.iterdir() if each.suffix in (".txt", ".jsonl")) if root.is_dir() else [root]
        )
        if not root.exists():
            raise FactorError(f"--text {str(path)!r}: does not exist")
        found = tuple(document for each in files for document in _documents(each) if document.text.strip())
        if not found:
            raise FactorError(f"--text {str(path)!r}: contains no text in *.txt or *.jsonl files")
        return cls(str(path), found)

    @property
    def digest(self) -> str:
        """SHA-256 of all names and texts, in hexadecimal."""
        digest = hashlib.sha256()
        for each in self.documents:
            digest.update(f"{each.name}\0{each.text}\0".encode())
        return digest.hexdigest()

    def shuffled(self, rng: random.Random) -> list[Document]:
        """Return all documents in random order."""
        return rng.sample(self.documents, len(self.documents))

    def ids(self, document: Document, encode: Callable[[str], list[int]]) -> list[int]:
        """Return the token ids of a document, encoded once."""
        if document.name not in self._ids:
            self._ids[document.name] = encode(document.text)
        return self._ids[document.name]


def _documents(path: Path) -> Iterator[Document]:
    try:
        if path.suffix != ".jsonl":
            yield Document(path.name, read_text(path))
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Document(f"{path.name}:{number}", _text(line, number))
    except FactorError as error:
        raise FactorError(f"--text: {str(path)!r}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FactorError(f"--text: {str(path)!r} cannot be read: {error}") from error


def _text(line: str, number: int) -> str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FactorError(f"line {number}: is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("text"), str):
        raise FactorError(f'line {number}: must be an object with a string "text"')
    try:
        content["text"].encode()
    except UnicodeEncodeError as error:
        raise FactorError(f"line {number}: must be valid Unicode text; it has an unpaired surrogate") from error
    return str(content["text"])
