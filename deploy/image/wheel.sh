#!/bin/sh
# Builds ropeswitch's wheel: wheel.sh SOURCE WHEELS
# The same sources give the same bytes: their times and modes, which a wheel keeps, are set here, and setuptools is pinned.
set -eu
source=$1 wheels=$2
builder=$(mktemp -d)
python3 -m venv "$builder/environment"
cp -R "$source" "$builder/source"
chmod -R u=rwX,go=rX "$builder/source"
# 1 January 2020, UTC.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1577836800}"
"$builder/environment/bin/pip" wheel --quiet --no-cache-dir --no-deps --wheel-dir "$wheels" "$builder/source"
rm -rf "$builder"
