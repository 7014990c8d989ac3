"""Downloads Debian packages with their missing dependencies, and unpacks them without root.

The Makefile runs it for the long tests: ``python requirements/debian.py FOLDER PACKAGE...``. It uses apt with the machine's
own package sources. Standard library only, because nothing is installed yet.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def fetch(packages: Sequence[str], folder: Path) -> None:
    """Unpack packages into a folder, which appears only once all of them are unpacked.

    Args:
        packages: Package names. They are fetched even if installed; installed dependencies are not.
        folder: Target folder; replaced if it exists.

    Raises:
        SystemExit: with the reason in one line, if apt is missing or does not have the packages.
    """
    names = ", ".join(packages)
    if shutil.which("apt-get") is None:
        raise SystemExit(f"{names}: apt-get was not found; the long tests need Debian or a derivative")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (work / part).mkdir(parents=True)
        flags = ["--download-only", "--reinstall", "--no-install-recommends", "--yes"]
        if _apt(work, "update") or _apt(work, "install", *flags, *packages):
            raise SystemExit(f"{names}: not available from apt; the long tests need them")
        unpacked = work / "unpacked"
        for archive in sorted(work.glob("cache/archives/*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, folder)


def _apt(work: Path, *arguments: str) -> int:
    # Everything is written here, so the locks of the machine's apt, which need root, are not required. As root, apt would
    # download as another user, who may not write here.
    options = ["APT::Sandbox::User=root", "Debug::NoLocking=true"]
    options += [f"Dir::Cache={work}/cache", f"Dir::State::lists={work}/lists"]
    flags = [part for option in options for part in ("-o", option)]
    return subprocess.run(["apt-get", "--quiet=2", *flags, *arguments], check=False).returncode


if __name__ == "__main__":
    fetch(sys.argv[2:], Path(sys.argv[1]))
