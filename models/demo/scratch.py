"""A folder for unfinished files, which an interruption cannot leave behind for good."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Make an empty ``folder`` and remove it at the end; what a killed process left there is removed first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
