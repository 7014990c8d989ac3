"""The project carries everything it needs in its wheel, and nothing of the machine it was written on."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.docs.pages import IGNORED, ROOT, project_files

# Home, scratch and work directories of a machine; and hosts of package registries, which belong in pip's configuration.
MACHINE = re.compile(
    r"(?<![\w./-])/(?:home|root(?!/\.cache)|farm|work|Users)/|(?<![\w.])/tmp/\w|\b(?:pypi|pythonhosted|debian|npmjs)\.org\b"
)


def test_nothing_of_a_machine() -> None:
    found = []
    for file in project_files():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights
        found += [f"{file.relative_to(ROOT)}: {match[0]}" for match in MACHINE.finditer(text)]
    assert found == []


def test_the_wheel_holds_every_module_and_data_file(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    package_dirs = project["tool"]["setuptools"]["package-dir"]
    source = tmp_path / "source"
    # Built from a copy: setuptools leaves its build folder beside the sources.
    for directory in package_dirs.values():
        shutil.copytree(ROOT / directory, source / directory, ignore=shutil.ignore_patterns(*IGNORED))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True, capture_output=True, text=True)

    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package.replace('.', '/')}/{file.relative_to(source / directory)}"
        for package, directory in package_dirs.items()
        for file in (source / directory).rglob("*")
        # The chart is no part of the package.
        if "helm" not in file.parts
        and (
            file.suffix == ".py"
            or file.name.endswith(".schema.json")
            or file.parent.name in ("longrope-mini", "static")
        )
    }
    assert expected <= packed, sorted(expected - packed)
    assert "ropeswitch/factors/factor_file.schema.json" in packed
    assert "ropeswitch/models/longrope-mini/config.json" in packed
    assert "ropeswitch/deploy/plan/gpus.toml" in packed
    assert "ropeswitch/server/ui/static/index.html" in packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)


def test_both_locks_pin_the_vllm_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for extra, lock in (("cpu", "cpu.lock"), ("cuda", "cuda.lock")):
        pinned = (ROOT / "requirements" / lock).read_text(encoding="utf-8").splitlines()
        for requirement in project["project"]["optional-dependencies"][extra]:
            assert requirement in pinned
        assert all("==" in line for line in pinned)


def test_every_lock_has_the_versions_whose_insides_the_server_relies_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = [requirement for requirement in project["project"]["dependencies"] if "==" in requirement]
    names = {requirement.partition("==")[0] for requirement in pinned}
    assert names == {"fastapi", "starlette", "uvicorn", "prometheus-client"}
    for lock in ("cpu.lock", "image-cpu.lock", "cuda.lock"):
        lines = (ROOT / "requirements" / lock).read_text(encoding="utf-8").splitlines()
        assert set(pinned) <= {line.removesuffix(" \\") for line in lines}
    for requirement in pinned:
        name, _, version = requirement.partition("==")
        assert importlib.metadata.version(name) == version
