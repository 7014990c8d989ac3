"""Fetches a Debian package by its name and unpacks it, without root and without installing it or what it depends on.

Run by the Makefile for what the long tests need: ``python requirements/debian.py PACKAGE FOLDER``. It asks apt, which knows
from the machine's own settings where packages come from. Standard library only: nothing is installed yet.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = ("apt-get", "dpkg-deb")


def fetch(package: str, folder: Path) -> None:
    """Unpack a package into a folder, which is there when all of it is, and not before.

    Args:
        package: The package's name.
        folder: Where to; what is there is replaced.

    Raises:
        SystemExit: with the reason in one line, when there is no apt or it does not have the package.
    """
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise SystemExit(f"{package}: {missing[0]} was not found; the long tests need Debian or what derives from it")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if not _downloaded(package, work, []):
            # The machine's lists of packages are old or missing; lists of our own need no root.
            own = [f"Dir::State::lists={work}/lists", f"Dir::Cache={work}/cache"]
            for part in ("lists/partial", "cache/archives/partial"):
                (work / part).mkdir(parents=True)
            _apt(["update"], work, own)
            if not _downloaded(package, work, own):
                raise SystemExit(f"{package}: apt has no such package; the long tests need it")
        [archive] = work.glob("*.deb")
        unpacked = work / "unpacked"
        subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, folder)


def _downloaded(package: str, work: Path, options: list[str]) -> bool:
    return _apt(["download", package], work, options) == 0 and any(work.glob("*.deb"))


def _apt(arguments: list[str], work: Path, options: list[str]) -> int:
    # Root's apt would hand downloads to another user, who may not write here.
    flags = [part for option in ("APT::Sandbox::User=root", *options) for part in ("-o", option)]
    return subprocess.run(["apt-get", "--quiet=2", *flags, *arguments], cwd=work, check=False).returncode


if __name__ == "__main__":
    fetch(sys.argv[1], Path(sys.argv[2]))
