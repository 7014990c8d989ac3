"""What `make setup` runs: refusals that name a way out, and repair of what an interruption left."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT


@pytest.fixture
def install() -> dict[str, Any]:
    """The names of the script."""
    return runpy.run_path(str(ROOT / "requirements" / "install.py"))


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_other_versions_are_refused(install: dict[str, Any], version: tuple[int, int]) -> None:
    install["check_version"]((3, 11), "python3")
    with pytest.raises(SystemExit, match=rf"Python 3.11 or 3.12, but python3 is {version[0]}.{version[1]}.*PYTHON="):
        install["check_version"](version, "python3")


def test_half_installed_packages_are_forgotten(
    install: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.0.dist-info", "half-1.0.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.0.dist-info" / "INSTALLER").write_text("pip\n")
    monkeypatch.setitem(install["main"].__globals__, "VENV", tmp_path)
    install["remove_half_installed"]()
    assert [path.name for path in packages.iterdir()] == ["whole-1.0.dist-info"]
