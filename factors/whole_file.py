"""Writes files atomically."""

import os
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError


def check_target(flag: str, path: str | Path, *, overwrite: bool = False) -> None:
    """Check, before hours of work, that :func:`save_bytes` will be able to write ``path``.

    Args:
        flag: Flag or name of the file, for the error.
        path: File that will be written.
        overwrite: Whether an existing file may be replaced.

    Raises:
        FactorError: when the file exists and ``overwrite`` is False, when it is not a regular file, or when its folder is
            missing or not writable.
    """
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
    """Write ``content`` to ``path`` atomically: the file appears under its name only when it is complete.

    Raises:
        FactorError: when the file exists and ``overwrite`` is False, or when it cannot be written.
    """
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
