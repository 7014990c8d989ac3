#!/bin/sh
# Builds the CPU image's file system without Docker or a registry: rootfs.sh SOURCE ROOT [OPTION OF MMDEBSTRAP ...]
# Needs mmdebstrap, and root or user namespaces (--mode=unshare). Uses Debian 12's Python 3.11, otherwise like the Dockerfile.
set -eu
source=$1 root=$2
shift 2
mmdebstrap --variant=minbase \
    --include=python3,python3-venv,ca-certificates,g++,libgomp1,libnuma1,libtcmalloc-minimal4 \
    "$@" \
    --customize-hook="mkdir -p \"\$1/src\" && tar -C '$source' --exclude=./.git --exclude=./.venv --exclude=./build -c . | tar -C \"\$1/src\" -x" \
    --customize-hook='chroot "$1" sh /src/deploy/image/wheel.sh /src /wheels' \
    --customize-hook='chroot "$1" sh /src/deploy/image/cpu.sh /src/requirements/image-cpu.lock /wheels /opt/ropeswitch' \
    --customize-hook='chroot "$1" sh /src/deploy/image/cache.sh' \
    --customize-hook='install -m 755 "$1/src/deploy/image/entrypoint.sh" "$1/usr/local/bin/ropeswitch-entrypoint"' \
    --customize-hook='rm -rf "$1/src" "$1/wheels"' \
    bookworm "$root"
