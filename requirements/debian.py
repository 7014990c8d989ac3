"""Fetches Debian packages by name, with what they depend on and the machine lacks, and unpacks them without root.

Run by the Makefile for what the long tests need: ``python requirements/debian.py FOLDER PACKAGE...``. It asks apt, which
knows from the machine's own settings where packages come from. Standard library only: nothing is installed yet.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TOOLS = ("apt-get", "dpkg-deb")


def fetch(packages: Sequence[str], folder: Path) -> None:
    """Unpack packages into a folder, which is there when all of them are, and not before.

    Args:
        packages: Their names. Dependencies that are installed are not fetched; these are, installed or not.
        folder: Where to; what is there is replaced.

    Raises:
        SystemExit: with the reason in one line, when there is no apt or it does not have the packages.
    """
    names = ", ".join(packages)
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise SystemExit(f"{names}: {missing[0]} was not found; the long tests need Debian or what derives from it")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (work / part).mkdir(parents=True)
        # Nothing is written but here, so the locks of the machine's own apt need not be held, which takes root.
        own = [f"Dir::Cache={work}/cache", "Debug::NoLocking=true"]
        if not _downloaded(packages, own):
            # The machine's lists of packages are old or missing; lists of our own need no root either.
            own += [f"Dir::State::lists={work}/lists"]
            _apt(["update"], own)
            if not _downloaded(packages, own):
                raise SystemExit(f"{names}: apt does not have them; the long tests need them")
        unpacked = work / "unpacked"
        for archive in sorted(work.glob("cache/archives/*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, folder)


def _downloaded(packages: Sequence[str], options: list[str]) -> bool:
    flags = ["--download-only", "--reinstall", "--no-install-recommends", "--yes"]
    return _apt(["install", *flags, *packages], options) == 0


def _apt(arguments: list[str], options: list[str]) -> int:
    # Root's apt would hand downloads to another user, who may not write here.
    flags = [part for option in ("APT::Sandbox::User=root", *options) for part in ("-o", option)]
    return subprocess.run(["apt-get", "--quiet=2", *flags, *arguments], check=False).returncode


if __name__ == "__main__":
    fetch(sys.argv[2:], Path(sys.argv[1]))
