"""The wheel: the same sources give the same bytes, whenever and wherever they are built."""

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.deploy.test_image import context
from tests.docs.pages import ROOT


def build(folder: Path, mode: int, seconds: float) -> Path:
    """Copy the image's build context, with a mode and a time for every file, and build the wheel."""
    source = folder / "source"
    for each in context():
        path = source / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / each).read_bytes())
        path.chmod(mode)
        os.utime(path, (seconds, seconds))
    command = ["sh", str(ROOT / "deploy" / "image" / "wheel.sh"), str(source), str(folder / "wheels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = (folder / "wheels").iterdir()
    return wheel


@pytest.mark.full
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "another place"
    wheels = build(first, 0o664, 1.5e9), build(second, 0o600, 1.6e9)
    assert len({hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}) == 1
    names = zipfile.ZipFile(wheels[0]).namelist()
    assert "ropeswitch/server/cli.py" in names and not [name for name in names if name.startswith("tests")]
