"""Writing a file so that it is there whole or not at all."""

import os
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError


def save_text(path: str | Path, text: str, *, overwrite: bool = False) -> None:
    """Write ``text`` to ``path`` as UTF-8; see :func:`save_bytes`."""
    save_bytes(path, text.encode("utf-8"), overwrite=overwrite)


def save_bytes(path: str | Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write ``content`` to ``path``, all of it or nothing: the file appears under its name when it is complete.

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
