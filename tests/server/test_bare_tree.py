"""The server from a checkout that is laid out and not installed: no script, no pip."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.server.running import ENGINE, PROGRAM, environment, running


def bare(folder: Path) -> tuple[str, dict[str, str]]:
    """A Python with every package of this one but ropeswitch, and the environment in which it finds the tree."""
    packages = folder / "packages"
    packages.mkdir()
    installed = Path(pytest.__file__).parents[1]
    for entry in installed.iterdir():
        if "ropeswitch" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "venv" / "lib" / name / "site-packages" / "packages.pth").write_text(str(packages))
    subprocess.run([str(python), str(ROOT / "requirements" / "lay_out.py"), str(folder / "tree")], check=True)
    return str(python), environment() | {"PYTHONPATH": str(folder / "tree")}


@pytest.mark.full
def test_the_command_runs_as_a_module_and_serves(checkpoint: Path, tmp_path: Path) -> None:
    python, variables = bare(tmp_path)
    program = [python, *PROGRAM[1:]]
    without = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
    assert subprocess.run([*program, "--version"], env=without, capture_output=True, check=False).returncode == 1
    flags = [str(checkpoint), *ENGINE, "--served-model-name", "tiny"]
    with running(tmp_path, *flags, command=program, variables=variables) as server:
        for length, expected in ((20, "short"), (300, "long")):
            answer = server.post("/v1/completions", {"model": "tiny", "prompt": [5] * length, "max_tokens": 2})
            assert (answer.status, answer.sets) == (200, expected)
