"""A folder for each test, passkey-tiny, opened once, and that model before it was extended."""

from pathlib import Path

import pytest

from ropeswitch.factors.local_model import LocalModel
from tests.passkey_tiny import FOLDER, without_factors

MODEL = str(FOLDER)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: commands write to relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def model() -> LocalModel:
    return LocalModel.load(MODEL)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bundled model with a config that says no factors: what a search for a longer length begins with."""
    folder = tmp_path_factory.mktemp("plain") / "plain"
    without_factors(FOLDER, folder)
    return str(folder)
