# syntax=docker/dockerfile:1
# GPU image, based on vLLM's:   docker build --tag ropeswitch .
# CPU image:                    docker build --target cpu --tag ropeswitch:cpu .
# Both accept the arguments of vllm/vllm-openai, run as root or any other user, write only to /tmp and /cache, and serve the
# bundled model by default.

# docs/supply-chain.md says how to look up a tag's current digest.
ARG VLLM_IMAGE=vllm/vllm-openai:v0.33.0
ARG PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY deploy/image/wheel.sh deploy/image/wheel.sh
COPY requirements/build.lock requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY deploy/__init__.py deploy/__init__.py
COPY deploy/plan/ deploy/plan/
COPY factors/ factors/
COPY kernels/ kernels/
COPY loadtests/ loadtests/
COPY model_patches/ model_patches/
COPY models/ models/
COPY server/ server/
RUN sh deploy/image/wheel.sh /src /wheels

FROM ${PYTHON_IMAGE} AS cpu-environment
COPY deploy/image/cpu.sh requirements/image-cpu.lock /src/
COPY --from=wheel /wheels/ /wheels/
RUN sh /src/cpu.sh /src/image-cpu.lock /wheels /opt/ropeswitch

FROM ${PYTHON_IMAGE} AS cpu
LABEL org.opencontainers.image.title="ropeswitch" \
      org.opencontainers.image.description="OpenAI-compatible server that rotates every request with the LongRoPE factors for its own length (CPU)" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# Libraries with which vLLM's CPU build allocates memory and computes, and the compiler for models without --enforce-eager.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgomp1 libnuma1 libtcmalloc-minimal4 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=cpu-environment /opt/ropeswitch /opt/ropeswitch
ENV PATH=/opt/ropeswitch/bin:$PATH \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    VLLM_NO_USAGE_STATS=1 \
    ROPESWITCH_HEALTH_URL=http://127.0.0.1:8000/health \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    USER=ropeswitch
COPY --chmod=755 deploy/image/entrypoint.sh /usr/local/bin/ropeswitch-entrypoint
COPY deploy/image/cache.sh /src/
RUN sh /src/cache.sh && rm -rf /src
WORKDIR /tmp
EXPOSE 8000
# The port refuses connections while the engine starts; a large model takes half an hour.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['ROPESWITCH_HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["ropeswitch-entrypoint"]

FROM ${VLLM_IMAGE} AS gpu
LABEL org.opencontainers.image.title="ropeswitch" \
      org.opencontainers.image.description="OpenAI-compatible server that rotates every request with the LongRoPE factors for its own length (CUDA)" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY deploy/image/gpu.sh /src/
COPY --from=wheel /wheels/ /wheels/
RUN sh /src/gpu.sh /wheels && rm -rf /src /wheels
ENV HOME=/cache \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    FLASHINFER_WORKSPACE_BASE=/cache \
    VLLM_NO_USAGE_STATS=1 \
    ROPESWITCH_HEALTH_URL=http://127.0.0.1:8000/health \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    USER=ropeswitch
COPY --chmod=755 deploy/image/entrypoint.sh /usr/local/bin/ropeswitch-entrypoint
COPY deploy/image/cache.sh /src/
RUN sh /src/cache.sh && rm -rf /src
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60m --retries=3 CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['ROPESWITCH_HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["ropeswitch-entrypoint"]
