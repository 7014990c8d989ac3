"""Reads texts to evaluate on, from ``*.txt`` and ``*.jsonl`` files."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import read_text


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
        """Read one file, or a folder (not its subfolders) sorted by file name; empty texts are skipped."""
        root = Path(path)
        if not root.exists():
            raise FactorError(f"--text {str(path)!r}: does not exist")
        files = [root]
        if root.is_dir():
            files = sorted(each for each in root.iterdir() if each.suffix in (".txt", ".jsonl"))
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
        # Not read_text: such a file may be larger than 64 MiB.
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Document(f"{path.name}:{number}", _text(line, number))
    except (OSError, UnicodeDecodeError, FactorError) as error:
        raise FactorError(f"--text: {str(path)!r}: {error}") from error


def _text(line: str, number: int) -> str:
    try:
        text = json.loads(line)["text"]
        text.encode()
    except UnicodeEncodeError as error:
        raise FactorError(f"line {number}: must be valid Unicode text; it has an unpaired surrogate") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise FactorError(f'line {number}: must be a JSON object with a string "text"') from error
    return str(text)
