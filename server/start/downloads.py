"""Shows the download progress of a model, by file sizes in the hub's cache; vLLM does not show any."""

from pathlib import Path

# Seconds without growth after which a download is no longer shown.
PAUSE = 10.0
_GIB = 1 << 30


class Downloads:
    """The download of one model.

    Args:
        folder: The model's folder in the hub's cache; it may not exist yet.
        now: The clock, in seconds.
    """

    def __init__(self, folder: Path, now: float) -> None:
        self._blobs = folder / "blobs"
        self._before = self._size = self._bytes()
        self._grew = now - PAUSE

    def status(self, now: float) -> str | None:
        """Return the size downloaded since the start, while it grows; otherwise None."""
        size = self._bytes()
        if size != self._size:
            self._size, self._grew = size, now
        if now - self._grew >= PAUSE:
            return None
        return f"downloading the model: {(size - self._before) / _GIB:.2f} GiB so far"

    def _bytes(self) -> int:
        """Return the total bytes of complete and partial files."""
        total = 0
        for file in self._blobs.iterdir() if self._blobs.is_dir() else ():
            try:
                total += file.stat().st_size
            except FileNotFoundError:  # renamed on completion
                continue
        return total
