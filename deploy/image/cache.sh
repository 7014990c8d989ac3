#!/bin/sh
# Makes /cache, where any user may write, and has it serve as the cache of root's home folder too: a volume that is mounted at
# /root/.cache/huggingface, as for vllm/vllm-openai, is then mounted at /cache/huggingface, where HF_HOME points.
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
