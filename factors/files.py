"""Reads small text and JSON files, and writes files atomically; every fault raises FactorError."""

import json
import os
from pathlib import Path
from typing import Any, NoReturn

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.quoted import quoted

MAX_BYTES = 64 * 1024 * 1024


def read_text(path: str | Path) -> str:
    """Return the UTF-8 text of a regular file of at most 64 MiB; a FactorError does not name the file."""
    file = Path(path)
    try:
        if not file.is_file():
            raise FactorError("is not a regular file" if file.exists() else "does not exist")
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FactorError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise FactorError(f"is larger than {MAX_BYTES // 1024**2} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FactorError(f"is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from error


def object_from_json(text: str) -> dict[str, Any]:
    """Parse a JSON object; unlike ``json.loads``, reject NaN, Infinity and duplicate keys. Errors name the place."""
    if text.startswith("GGUF"):
        raise FactorError("is a GGUF file, which is not supported; use the folder of the original weights")
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise FactorError(f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise FactorError("is nested too deeply") from error
    except FactorError:
        raise
    except ValueError as error:  # Python refuses to convert whole numbers of thousands of digits.
        raise FactorError(f"contains a number that is too long: {error}") from error
    if not isinstance(value, dict):
        raise FactorError(f"must be a JSON object, found {quoted(value)}")
    return value


def _no_constant(literal: str) -> NoReturn:
    raise FactorError(f"contains {literal}, which is not JSON; every number must be finite")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise FactorError(f"{quoted(key)}: given twice in one object")
        values[key] = value
    return values


def check_target(flag: str, path: str | Path, *, overwrite: bool = False) -> None:
    """Check, before hours of work, that :func:`save_bytes` will be able to write ``path``; errors name ``flag``."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise FactorError(f"{flag}: {str(path)!r} exists and is not a regular file")
    if target.exists() and not overwrite:
        raise FactorError(f"{flag}: {str(path)!r} exists; remove it first or pass --force")
    if not target.parent.is_dir():
        raise FactorError(f"{flag}: {str(path)!r} cannot be written: {str(target.parent)!r} is not a folder")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise FactorError(f"{flag}: {str(path)!r} cannot be written: its folder is not writable")


def save_text(path: str | Path, text: str, *, overwrite: bool = False) -> None:
    """Write ``text`` to ``path`` as UTF-8; see :func:`save_bytes`."""
    save_bytes(path, text.encode("utf-8"), overwrite=overwrite)


def save_bytes(path: str | Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write ``content`` to ``path`` atomically; a FactorError when it exists and ``overwrite`` is False, or on a fault."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.exists() and not target.is_file():
            raise FactorError(f"{str(path)!r}: exists and is not a regular file")
        if target.exists() and not overwrite:
            raise FactorError(f"{str(path)!r}: exists; remove it first or pass --force")
        try:
            with open(partial, "xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise FactorError(f"{str(path)!r}: cannot be written: {error.strerror or error}") from error
