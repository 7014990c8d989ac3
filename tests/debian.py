"""Programs of Debian packages that ``requirements/debian.py`` unpacked, with the libraries that the machine may lack."""

import os
from pathlib import Path


def environment(folder: Path) -> dict[str, str]:
    """This process's environment, with the folder's programs and libraries first."""
    libraries = sorted({str(file.parent) for top in ("lib", "usr/lib") for file in folder.glob(f"{top}/**/*.so*")})
    return os.environ | {"LD_LIBRARY_PATH": ":".join(libraries), "PATH": f"{folder / 'usr/bin'}:{os.environ['PATH']}"}
