#!/bin/sh
# Creates /cache, writable by any user, and links root's ~/.cache to it: a volume mounted at /root/.cache/huggingface, as for
# vllm/vllm-openai, then appears at /cache/huggingface, where HF_HOME points.
set -eu
mkdir -m 1777 /cache
if [ -d /root/.cache ]; then
    cp -a /root/.cache/. /cache/
    rm -rf /root/.cache
fi
mkdir -p -m 1777 /cache/huggingface
chmod -R a+rwX /cache
chmod 1777 /cache
ln -s /cache /root/.cache
