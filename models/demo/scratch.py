"""Provides a folder for unfinished files that is cleaned up even after an interruption."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Create an empty ``folder`` and remove it at the end; remove leftovers of a killed process first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
