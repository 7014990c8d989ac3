#!/bin/sh
# Builds ropeswitch's wheel: wheel.sh SOURCE WHEELS
set -eu
source=$1 wheels=$2
builder=$(mktemp -d)
python3 -m venv "$builder"
"$builder/bin/pip" wheel --quiet --no-cache-dir --no-deps --wheel-dir "$wheels" "$source"
rm -rf "$builder"
