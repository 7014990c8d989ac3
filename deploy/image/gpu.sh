#!/bin/sh
# Installs ropeswitch's wheel into vLLM's own image: gpu.sh WHEELS
# The image already has all dependencies; the build stops if one is missing or vLLM is not the pinned release.
set -eu
python3 -m pip install --quiet --no-cache-dir --no-deps --no-index "$1"/ropeswitch-*.whl
python3 - <<'CHECK'
from importlib.metadata import requires, version

from packaging.requirements import Requirement

for line in requires("ropeswitch") or []:
    needed = Requirement(line)
    if needed.marker is None and version(needed.name) not in needed.specifier:
        raise SystemExit(f"{needed} is needed, but {version(needed.name)} is installed")
CHECK
ropeswitch patches check
