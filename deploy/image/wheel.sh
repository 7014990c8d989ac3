#!/bin/sh
# Builds ropeswitch's wheel: wheel.sh SOURCE WHEELS
# The build is reproducible: file times and modes, which a wheel records, are set here, and setuptools is locked.
set -eu
source=$1 wheels=$2
builder=$(mktemp -d)
python3 -m venv "$builder/environment"
pip() {
    "$builder/environment/bin/pip" "$@" --quiet --no-cache-dir --no-deps
}
pip install --require-hashes --requirement "$source/requirements/build.lock"
cp -R "$source" "$builder/source"
chmod -R u=rwX,go=rX "$builder/source"
# 1 January 2020, UTC.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1577836800}"
pip wheel --no-build-isolation --wheel-dir "$wheels" "$builder/source"
rm -rf "$builder"
