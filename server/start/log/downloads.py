"""Shows the download progress of a model, by file sizes in the hub's cache; vLLM does not show any."""

from pathlib import Path

# Seconds without growth after which a download is no longer shown.
PAUSE = 10.0
_GIB = 1 << 30


def cache_folder(model: str, download_dir: str | None) -> Path | None:
    """Return a model's folder in the hub's cache, which may not exist yet; None for a model that is a local folder.

    Args:
        model: A folder or a name on a hub.
        download_dir: A folder to use instead of the hub's cache, or None.
    """
    if Path(model).expanduser().exists():
        return None
    # Imported here: it takes half a second.
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(download_dir or constants.HF_HUB_CACHE, repo_folder_name(repo_id=model, repo_type="model"))


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
