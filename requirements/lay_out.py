"""Lay ropeswitch out in a folder like an installation, but without pip: ``python requirements/lay_out.py FOLDER``.

With the folder on ``PYTHONPATH``, Python imports the packages of this checkout and vLLM finds their plugins. Safe to run
again: the folder is recreated.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lay_out(folder: Path) -> None:
    """Link each package under its import name, and write metadata with the version and entry points."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    shutil.rmtree(folder, ignore_errors=True)
    for package, directory in pyproject["tool"]["setuptools"]["package-dir"].items():
        link = folder / package.replace(".", "/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(ROOT / directory)
    metadata = folder / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    lines = []
    for group, entries in {"console_scripts": project["scripts"], **project["entry-points"]}.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]).absolute())
