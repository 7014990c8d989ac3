#!/bin/sh
# Builds ropeswitch's wheel: wheel.sh SOURCE WHEELS
set -eu
source=$1 wheels=$2
python3 -m venv /tmp/build
/tmp/build/bin/pip wheel --quiet --no-cache-dir --no-deps --wheel-dir "$wheels" "$source"
rm -rf /tmp/build
