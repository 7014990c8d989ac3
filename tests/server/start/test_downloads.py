"""A download's size, from the files of the hub's cache."""

from pathlib import Path

from ropeswitch.server.start.log.downloads import PAUSE, Downloads
from ropeswitch.server.start.log.progress import Progress


def test_a_download_is_shown_while_it_grows(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path / "models--a--b", 100.0)
    assert downloads.status(100.0) is None
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    assert downloads.status(101.0) is None
    part = blobs / "0f.incomplete"
    with part.open("wb") as file:
        file.truncate(3 << 29)
    assert downloads.status(102.0) == "downloading the model: 1.50 GiB so far"
    # Completed: another name, the same size.
    part.rename(blobs / "0f")
    assert downloads.status(103.0) == "downloading the model: 1.50 GiB so far"
    assert downloads.status(102.0 + PAUSE) is None


def test_files_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "0a.incomplete").write_bytes(bytes(1 << 20))
    downloads = Downloads(tmp_path, 0.0)
    assert downloads.status(0.0) is None
    with (blobs / "0a.incomplete").open("ab") as file:
        file.truncate((1 << 20) + (1 << 28))
    assert downloads.status(1.0) == "downloading the model: 0.25 GiB so far"


def test_progress_shows_it_in_place_of_the_stage() -> None:
    progress = Progress("loading weights", 0.0)
    progress.instead = "downloading the model: 0.25 GiB so far"
    assert progress.status(5.0) == "downloading the model: 0.25 GiB so far (5 s)"
    progress.instead = None
    assert progress.status(6.0) == "loading weights (6 s)"
